-- Changes that Kafka has not acknowledged, oldest first. $1 how many at most.
SELECT o.id, o.kind, o.name, o.version, o.event_id, o.payload, o.created_at
FROM outbox AS o
WHERE o.kafka_published_at IS NULL
ORDER BY o.id
LIMIT $1
