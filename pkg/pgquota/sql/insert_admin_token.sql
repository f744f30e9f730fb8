-- A new token of the admin API. $1 name; $2 role; $3 org_id; $4 the token's hash; $5 who makes it; $6 expires_at or null. No row: the name or
-- the token was used before. expires_at in the past is the caller's to refuse.
INSERT INTO admin_tokens (name, role, org_id, token_hash, created_by, created_at, expires_at)
VALUES ($1, $2, $3, $4, $5, date_trunc('milliseconds', clock_timestamp()), $6)
ON CONFLICT DO NOTHING
RETURNING created_at
