-- A new key with the hash of its secret.
INSERT INTO api_keys (key_id, user_id, org_id, name, secret_hash, prefix, rotations, created_at)
VALUES ($1, $2, $3, $4, $5, $6, 0, $7)
