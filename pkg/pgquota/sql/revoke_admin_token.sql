-- Refuses a token from now on. $1 name; $2 who revokes it. No row: there is none, or it is revoked already.
UPDATE admin_tokens SET revoked_at = date_trunc('milliseconds', clock_timestamp()), revoked_by = $2 WHERE name = $1 AND revoked_at IS NULL
