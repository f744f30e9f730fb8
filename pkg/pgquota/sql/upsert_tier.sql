-- The catalogue after one event. created_at stays that of the first.
INSERT INTO tiers (tier, rpm_limit, tpm_limit, tpd_limit, concurrent_limit, priority, allowed_models, max_context, redis_away, limits,
                   model_limits, version, created_at, updated_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10::jsonb, $11::jsonb, $12, $13, $13)
ON CONFLICT (tier) DO UPDATE SET
    rpm_limit = excluded.rpm_limit, tpm_limit = excluded.tpm_limit, tpd_limit = excluded.tpd_limit,
    concurrent_limit = excluded.concurrent_limit, priority = excluded.priority, allowed_models = excluded.allowed_models,
    max_context = excluded.max_context, redis_away = excluded.redis_away, limits = excluded.limits, model_limits = excluded.model_limits,
    version = excluded.version, updated_at = excluded.updated_at
