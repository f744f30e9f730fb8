-- Tokens in the order of their names, expired and revoked ones included. $1 one name, '' for all; $2 the last name of the page before, ''; $3 how many at most.
SELECT a.name, a.role, a.org_id, a.created_by, a.created_at, a.expires_at, a.revoked_by, a.revoked_at
FROM admin_tokens AS a
WHERE ($1::text = '' OR a.name = $1) AND a.name > $2::text
ORDER BY a.name
LIMIT $3
