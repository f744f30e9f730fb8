-- Changes of some names that Redis may not know yet, oldest first. $1 names.
SELECT o.id, o.name, o.version, o.shards
FROM outbox AS o
WHERE o.name = ANY($1::text[]) AND o.redis_published_at IS NULL
ORDER BY o.id
