-- Keys in the order of their ids, the first ones after $3, with the versions and suspensions of their quotas.
-- $1 user_id, '' for any; $2 org_id of the owner, '' for any; $3 the last key_id of the page before, ''; $4 how many at most;
-- $5 only keys of this org and of users in it, '' for all.
SELECT k.key_id, k.user_id, k.org_id, k.name, k.prefix, k.rotations, k.created_at, k.rotated_at, k.revoked_at,
       q.suspended, q.version, q.updated_at
FROM api_keys AS k
JOIN quotas AS q ON q.subject = 'api_key:' || k.key_id
WHERE ($1::text = '' OR k.user_id = $1) AND ($2::text = '' OR k.org_id = $2) AND k.key_id > $3::text
      AND ($5::text = '' OR k.org_id = $5 OR EXISTS (SELECT 1 FROM quotas AS u WHERE k.user_id <> '' AND u.subject = 'user:' || k.user_id AND u.org_id = $5))
ORDER BY k.key_id
LIMIT $4
