-- $1 key_id; $2 the new secret's hash; $3 its visible beginning; $4 now.
UPDATE api_keys SET secret_hash = $2, prefix = $3, rotations = rotations + 1, rotated_at = $4 WHERE key_id = $1
