-- Every tier of the catalogue and when it was made, and those that only have events.
SELECT n.tier, t.tier, t.rpm_limit, t.tpm_limit, t.tpd_limit, t.concurrent_limit, t.priority, t.allowed_models, t.max_context, t.redis_away, t.limits,
       t.model_limits, t.version, t.updated_at, t.created_at
FROM (SELECT v.tier FROM tiers AS v UNION SELECT e.tier FROM tier_events AS e) AS n
LEFT JOIN tiers AS t ON t.tier = n.tier
ORDER BY n.tier
