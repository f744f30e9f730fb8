-- Refused attempts of one kind, folded into one row.
INSERT INTO access_refusals (instance, reason, actor, address, method, path, request_id, attempts, first_at, last_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
