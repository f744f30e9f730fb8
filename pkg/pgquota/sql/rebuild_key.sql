-- A key's row, but for its secret and its owner, which are in no event and never change. $1 key_id; $2 name; $3 rotations; $4 created_at; $5 rotated_at;
-- $6 revoked_at.
UPDATE api_keys SET name = $2, rotations = $3, created_at = $4, rotated_at = $5, revoked_at = $6 WHERE key_id = $1
