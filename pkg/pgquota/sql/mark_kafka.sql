UPDATE outbox SET kafka_published_at = now() WHERE id = ANY($1::bigint[]) AND kafka_published_at IS NULL
