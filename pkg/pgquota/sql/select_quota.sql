-- The quota of one subject with the tier that holds for it, in one read. Always one row.
-- $1 subject; $2 the tier of a subject that has no quota of its own.
-- q.version is null: no quota of its own. t.tier is null: the tier is not in the catalogue.
SELECT q.org_id, q.tier, q.rpm_limit, q.tpm_limit, q.tpd_limit, q.concurrent_limit, q.allowed_models, q.max_context, q.suspended, q.version,
       q.created_at, q.updated_at,
       t.tier, t.rpm_limit, t.tpm_limit, t.tpd_limit, t.concurrent_limit, t.priority, t.allowed_models, t.max_context, t.redis_away, t.version,
       t.updated_at
FROM (SELECT $1::text AS subject) AS s
LEFT JOIN quotas AS q ON q.subject = s.subject
LEFT JOIN tiers AS t ON t.tier = COALESCE(q.tier, $2::text)
