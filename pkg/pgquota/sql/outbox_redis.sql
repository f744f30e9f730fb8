-- Changes that Redis may not know yet, oldest first. $1 how many at most.
SELECT o.id, o.name, o.version, o.shards
FROM outbox AS o
WHERE o.redis_published_at IS NULL
ORDER BY o.id
LIMIT $1
