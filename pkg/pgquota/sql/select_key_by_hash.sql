-- The key that a secret is of. $1 the secret's hash.
SELECT k.key_id, k.user_id, k.org_id, k.name, k.prefix, k.rotations, k.created_at, k.rotated_at, k.revoked_at
FROM api_keys AS k
WHERE k.secret_hash = $1
