-- The whole catalogue, the least important tier first.
SELECT t.tier, t.rpm_limit, t.tpm_limit, t.tpd_limit, t.concurrent_limit, t.priority, t.allowed_models, t.max_context, t.redis_away, t.limits,
       t.model_limits, t.version, t.updated_at
FROM tiers AS t
ORDER BY t.priority, t.tier
