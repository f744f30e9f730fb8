-- An org's pool after one event. created_at stays that of the first.
INSERT INTO org_quotas (org_id, rpm_limit, tpm_limit, tpd_limit, concurrent_limit, limits, shards, time_zone, deleted, version, created_at,
                        updated_at)
VALUES ($1, $2, $3, $4, $5, $6::jsonb, $7, $8, $9, $10, $11, $11)
ON CONFLICT (org_id) DO UPDATE SET
    rpm_limit = excluded.rpm_limit, tpm_limit = excluded.tpm_limit, tpd_limit = excluded.tpd_limit,
    concurrent_limit = excluded.concurrent_limit, limits = excluded.limits, shards = excluded.shards, time_zone = excluded.time_zone,
    deleted = excluded.deleted, version = excluded.version, updated_at = excluded.updated_at
