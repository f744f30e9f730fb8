-- $1 key_id; $2 now.
UPDATE api_keys SET revoked_at = $2 WHERE key_id = $1
