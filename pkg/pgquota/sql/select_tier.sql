-- One tier of the catalogue. $1 its name.
SELECT t.tier, t.rpm_limit, t.tpm_limit, t.tpd_limit, t.concurrent_limit, t.priority, t.allowed_models, t.max_context, t.redis_away, t.limits,
       t.model_limits, t.version, t.updated_at
FROM tiers AS t
WHERE t.tier = $1
