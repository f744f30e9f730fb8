UPDATE outbox SET redis_published_at = now() WHERE id = ANY($1::bigint[]) AND redis_published_at IS NULL
