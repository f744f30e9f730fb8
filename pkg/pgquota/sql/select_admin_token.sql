-- The token that a hash is of, if it is still good. $1 hash.
SELECT a.name, a.role, a.org_id, a.created_by, a.created_at, a.expires_at, a.revoked_by, a.revoked_at
FROM admin_tokens AS a
WHERE a.token_hash = $1 AND a.revoked_at IS NULL AND (a.expires_at IS NULL OR a.expires_at > clock_timestamp())
