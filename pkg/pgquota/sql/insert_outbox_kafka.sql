-- A change that no decision depends on: it goes to Kafka only, so Redis has nothing to wait for.
INSERT INTO outbox (kind, name, version, shards, event_id, payload, created_at, redis_published_at)
VALUES ($1, $2, $3, '{}', $4, $5::json, $6, $6)
