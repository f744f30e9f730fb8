-- The key that a secret is of, with the version and suspension of its quota, of one moment. $1 the secret's hash.
SELECT k.key_id, k.user_id, k.org_id, k.name, k.prefix, k.rotations, k.created_at, k.rotated_at, k.revoked_at,
       q.suspended, q.version, q.updated_at
FROM api_keys AS k
JOIN quotas AS q ON q.subject = 'api_key:' || k.key_id
WHERE k.secret_hash = $1
