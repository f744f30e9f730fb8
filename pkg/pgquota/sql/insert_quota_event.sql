INSERT INTO quota_events (subject, version, actor, reason, before, after, at)
VALUES ($1, $2, $3, $4, $5::jsonb, $6::jsonb, $7)
