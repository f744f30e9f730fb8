-- Orgs in the order of their ids: all that have or had a pool, a user or a key. $1 one org, '' for all; $2 the last org_id of the page before, ''; $3 how many
-- at most. The pool's columns are null for an org that nobody has ever set a pool for.
WITH known AS (
    (SELECT g.org_id FROM org_quotas AS g WHERE ($1::text = '' OR g.org_id = $1) AND g.org_id > $2::text ORDER BY g.org_id LIMIT $3)
    UNION
    (SELECT DISTINCT q.org_id FROM quotas AS q WHERE q.org_id <> '' AND ($1::text = '' OR q.org_id = $1) AND q.org_id > $2::text ORDER BY q.org_id LIMIT $3)
    UNION
    (SELECT DISTINCT k.org_id FROM api_keys AS k WHERE k.org_id <> '' AND ($1::text = '' OR k.org_id = $1) AND k.org_id > $2::text ORDER BY k.org_id LIMIT $3)
)
SELECT o.org_id, p.rpm_limit, p.tpm_limit, p.tpd_limit, p.concurrent_limit, p.limits, p.shards, p.time_zone, p.deleted, p.version, p.created_at, p.updated_at
FROM known AS o
LEFT JOIN org_quotas AS p ON p.org_id = o.org_id
ORDER BY o.org_id
LIMIT $3
