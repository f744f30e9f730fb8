-- What is stored of some names: the quota, the key and the pool of each, null where there is none. $1 names.
SELECT n.name,
       q.org_id, q.tier, q.rpm_limit, q.tpm_limit, q.tpd_limit, q.concurrent_limit, q.allowed_models, q.max_context, q.limits, q.model_limits, q.shards,
       q.suspended, q.version, q.created_at, q.updated_at,
       k.key_id, k.user_id, k.org_id, k.name, k.prefix, k.rotations, k.created_at, k.rotated_at, k.revoked_at,
       p.rpm_limit, p.tpm_limit, p.tpd_limit, p.concurrent_limit, p.limits, p.shards, p.time_zone, p.deleted, p.version, p.created_at, p.updated_at
FROM unnest($1::text[]) AS n (name)
LEFT JOIN quotas AS q ON q.subject = n.name
LEFT JOIN api_keys AS k ON n.name LIKE 'api\_key:%' AND k.key_id = substr(n.name, 9)
LEFT JOIN org_quotas AS p ON n.name LIKE 'org:%' AND p.org_id = substr(n.name, 5)
ORDER BY n.name COLLATE "C"
