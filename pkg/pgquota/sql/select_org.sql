-- An org's pool. $1 org_id. No row: nobody has ever set it.
SELECT p.rpm_limit, p.tpm_limit, p.tpd_limit, p.concurrent_limit, p.limits, p.shards, p.time_zone, p.deleted, p.version, p.created_at, p.updated_at
FROM org_quotas AS p
WHERE p.org_id = $1
