-- Quotas in the order of their subjects, the first ones after $3.
-- $1 org_id, '' for any; $2 tier, '' for any; $3 the last subject of the page before, ''; $4 how many at most; $5 where the subjects end, as
-- 'user;' is behind every 'user:…', '' for nowhere.
SELECT q.subject,
       q.org_id, q.tier, q.rpm_limit, q.tpm_limit, q.tpd_limit, q.concurrent_limit, q.allowed_models, q.max_context, q.limits, q.model_limits, q.shards,
       q.suspended, q.version, q.created_at, q.updated_at,
       k.key_id, k.user_id, k.org_id, k.name, k.prefix, k.rotations, k.created_at, k.rotated_at, k.revoked_at,
       t.tier, t.rpm_limit, t.tpm_limit, t.tpd_limit, t.concurrent_limit, t.priority, t.allowed_models, t.max_context, t.redis_away, t.limits,
       t.model_limits, t.version, t.updated_at
FROM quotas AS q
LEFT JOIN api_keys AS k ON q.subject = 'api_key:' || k.key_id
LEFT JOIN tiers AS t ON t.tier = q.tier
WHERE ($1::text = '' OR q.org_id = $1) AND ($2::text = '' OR q.tier = $2) AND q.subject > $3::text AND ($5::text = '' OR q.subject < $5)
ORDER BY q.subject
LIMIT $4
