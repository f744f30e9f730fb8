-- Changes of one name that Redis may not know yet, oldest first. $1 name.
SELECT o.id, o.name, o.version, o.shards
FROM outbox AS o
WHERE o.name = $1 AND o.redis_published_at IS NULL
ORDER BY o.id
