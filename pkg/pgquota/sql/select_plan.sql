-- All that decides over one subject's requests, in one statement, hence of one moment. Always one row.
-- $1 subject; $2 the key's id if it is a key, else ''; $3 the tier of a subject without a quota; $4 that of a key's user without one;
-- $5 how far back moves reach.
-- The subject's quota, key and tier as select_quota.sql gives them; then the same of the user who owns the key; then the org, '' if none,
-- and its pool; then, as JSON, the events that may have moved the payer's counters, oldest first, and the shards of the orgs they name.
WITH s AS (
    SELECT $1::text AS subject, COALESCE(k.user_id, '') AS key_user,
           CASE WHEN k.user_id <> '' THEN 'user:' || k.user_id ELSE $1::text END AS payer
    FROM (SELECT 1) AS one
    LEFT JOIN api_keys AS k ON k.key_id = $2::text
), moved AS (
    -- Of what was and what came of it only the place: of a payer that has moved hundreds of times the rest is megabytes.
    SELECT e.subject, e.version, e.at,
           CASE WHEN e.before IS NOT NULL THEN jsonb_build_object('org_id', e.before -> 'org_id', 'shards', e.before -> 'shards') END AS before,
           CASE WHEN e.after IS NOT NULL THEN jsonb_build_object('org_id', e.after -> 'org_id', 'shards', e.after -> 'shards') END AS after
    FROM s
    JOIN quota_events AS e ON e.subject = s.payer AND e.at > now() - $5::interval AND NOT (e.before IS NULL AND e.after ? 'owner') -- a key's birth
                              AND (COALESCE(e.before ->> 'org_id', '') <> COALESCE(e.after ->> 'org_id', '')
                                                  OR COALESCE(e.before ->> 'shards', '1') <> COALESCE(e.after ->> 'shards', '1'))
), o AS (
    SELECT COALESCE(CASE WHEN s.key_user <> '' THEN u.org_id ELSE q.org_id END, '') AS org_id
    FROM s
    LEFT JOIN quotas AS q ON q.subject = s.subject
    LEFT JOIN quotas AS u ON u.subject = 'user:' || s.key_user AND s.key_user <> ''
), orgs AS (
    SELECT o.org_id FROM o WHERE o.org_id <> ''
    UNION
    SELECT v.org_id FROM moved AS m CROSS JOIN LATERAL (VALUES (m.before ->> 'org_id'), (m.after ->> 'org_id')) AS v (org_id) WHERE v.org_id <> ''
), placings AS (
    SELECT m.subject, m.version, m.at, m.before, m.after FROM moved AS m
    UNION ALL
    SELECT e.subject, e.version, e.at, jsonb_build_object('shards', e.before -> 'shards'), jsonb_build_object('shards', e.after -> 'shards')
    FROM orgs
    JOIN quota_events AS e ON e.subject = 'org:' || orgs.org_id AND e.at > now() - $5::interval
                              AND (COALESCE(e.before ->> 'org_id', '') <> COALESCE(e.after ->> 'org_id', '')
                                                  OR COALESCE(e.before ->> 'shards', '1') <> COALESCE(e.after ->> 'shards', '1'))
)
SELECT q.org_id, q.tier, q.rpm_limit, q.tpm_limit, q.tpd_limit, q.concurrent_limit, q.allowed_models, q.max_context, q.limits, q.model_limits, q.shards,
       q.suspended, q.version, q.created_at, q.updated_at,
       k.key_id, k.user_id, k.org_id, k.name, k.prefix, k.rotations, k.created_at, k.rotated_at, k.revoked_at,
       t.tier, t.rpm_limit, t.tpm_limit, t.tpd_limit, t.concurrent_limit, t.priority, t.allowed_models, t.max_context, t.redis_away, t.limits,
       t.model_limits, t.version, t.updated_at,
       u.org_id, u.tier, u.rpm_limit, u.tpm_limit, u.tpd_limit, u.concurrent_limit, u.allowed_models, u.max_context, u.limits, u.model_limits, u.shards,
       u.suspended, u.version, u.created_at, u.updated_at,
       ut.tier, ut.rpm_limit, ut.tpm_limit, ut.tpd_limit, ut.concurrent_limit, ut.priority, ut.allowed_models, ut.max_context, ut.redis_away,
       ut.limits, ut.model_limits, ut.version, ut.updated_at,
       o.org_id,
       p.rpm_limit, p.tpm_limit, p.tpd_limit, p.concurrent_limit, p.limits, p.shards, p.time_zone, p.deleted, p.version, p.created_at, p.updated_at,
       (SELECT jsonb_agg(jsonb_build_object('name', m.subject, 'version', m.version, 'before', m.before, 'after', m.after) ORDER BY m.at, m.version)
        FROM placings AS m),
       (SELECT jsonb_object_agg(g.org_id, g.shards) FROM org_quotas AS g WHERE g.org_id IN (SELECT orgs.org_id FROM orgs))
FROM s
CROSS JOIN o
LEFT JOIN quotas AS q ON q.subject = s.subject
LEFT JOIN api_keys AS k ON k.key_id = $2::text
LEFT JOIN tiers AS t ON t.tier = CASE WHEN k.user_id <> '' THEN NULL ELSE COALESCE(q.tier, $3::text) END
LEFT JOIN quotas AS u ON u.subject = 'user:' || s.key_user AND s.key_user <> ''
LEFT JOIN tiers AS ut ON ut.tier = COALESCE(u.tier, $4::text) AND s.key_user <> ''
LEFT JOIN org_quotas AS p ON p.org_id = o.org_id
