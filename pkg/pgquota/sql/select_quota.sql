-- The quota of one subject with the key it is of and the tier that holds for it, in one read. Always one row.
-- $1 subject; $2 the key's id if it is a key, else ''; $3 the tier of a subject that has no quota of its own.
-- q.version is null: no quota of its own. k.key_id is null: no key that anybody has made. t.tier is null: the tier is not in the
-- catalogue, or the key's owner is a user, whose tier holds.
SELECT q.org_id, q.tier, q.rpm_limit, q.tpm_limit, q.tpd_limit, q.concurrent_limit, q.allowed_models, q.max_context, q.limits, q.model_limits, q.shards,
       q.suspended, q.version, q.created_at, q.updated_at,
       k.key_id, k.user_id, k.org_id, k.name, k.prefix, k.rotations, k.created_at, k.rotated_at, k.revoked_at,
       t.tier, t.rpm_limit, t.tpm_limit, t.tpd_limit, t.concurrent_limit, t.priority, t.allowed_models, t.max_context, t.redis_away, t.limits,
       t.model_limits, t.version, t.updated_at
FROM (SELECT $1::text AS subject) AS s
LEFT JOIN quotas AS q ON q.subject = s.subject
LEFT JOIN api_keys AS k ON k.key_id = $2::text
LEFT JOIN tiers AS t ON t.tier = CASE WHEN k.user_id <> '' THEN NULL ELSE COALESCE(q.tier, $3::text) END
