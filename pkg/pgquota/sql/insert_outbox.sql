INSERT INTO outbox (kind, name, version, shards, event_id, payload, created_at)
VALUES ($1, $2, $3, $4, $5, $6::json, $7)
