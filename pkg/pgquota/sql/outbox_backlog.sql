-- What waits for Redis and for Kafka, and since when (seconds; 0: nothing waits).
SELECT count(*) FILTER (WHERE o.redis_published_at IS NULL),
       COALESCE(extract(epoch FROM now() - min(o.created_at) FILTER (WHERE o.redis_published_at IS NULL)), 0)::float8,
       count(*) FILTER (WHERE o.kafka_published_at IS NULL),
       COALESCE(extract(epoch FROM now() - min(o.created_at) FILTER (WHERE o.kafka_published_at IS NULL)), 0)::float8
FROM outbox AS o
WHERE o.redis_published_at IS NULL OR o.kafka_published_at IS NULL
