INSERT INTO price_events (model, version, valid_from, actor, reason, before, after, at)
VALUES ($1, $2, $3, $4, $5, $6::jsonb, $7::jsonb, $8)
