-- The projection after one event. created_at stays that of the first.
INSERT INTO quotas (subject, org_id, tier, rpm_limit, tpm_limit, tpd_limit, concurrent_limit, allowed_models, max_context, limits, model_limits,
                    shards, suspended, version, created_at, updated_at)
VALUES ($1, $2, NULLIF($3, ''), $4, $5, $6, $7, $8, $9, $10::jsonb, $11::jsonb, $12, $13, $14, $15, $15)
ON CONFLICT (subject) DO UPDATE SET
    org_id = excluded.org_id, tier = excluded.tier, rpm_limit = excluded.rpm_limit, tpm_limit = excluded.tpm_limit,
    tpd_limit = excluded.tpd_limit, concurrent_limit = excluded.concurrent_limit, allowed_models = excluded.allowed_models,
    max_context = excluded.max_context, limits = excluded.limits, model_limits = excluded.model_limits, shards = excluded.shards,
    suspended = excluded.suspended, version = excluded.version, updated_at = excluded.updated_at
