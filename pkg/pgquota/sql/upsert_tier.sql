-- The catalogue after one event. created_at stays that of the first.
INSERT INTO tiers (tier, rpm_limit, tpm_limit, tpd_limit, concurrent_limit, priority, allowed_models, max_context, redis_away, version,
                   created_at, updated_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $11)
ON CONFLICT (tier) DO UPDATE SET
    rpm_limit = excluded.rpm_limit, tpm_limit = excluded.tpm_limit, tpd_limit = excluded.tpd_limit,
    concurrent_limit = excluded.concurrent_limit, priority = excluded.priority, allowed_models = excluded.allowed_models,
    max_context = excluded.max_context, redis_away = excluded.redis_away, version = excluded.version, updated_at = excluded.updated_at
