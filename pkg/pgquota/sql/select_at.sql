-- What was stored of a subject at an instant, and the tier that held for it then, in one read. Always one row.
-- $1 subject; $2 the tier of a subject without a quota of its own; $3 the instant.
-- e.version is null: nothing was stored yet; e.after is null: nothing any more. t.version is null: there was no such tier then. created_at is when the
-- subject's first event was.
SELECT e.version, e.after, e.at, (SELECT min(f.at) FROM quota_events AS f WHERE f.subject = $1), t.version, t.after, t.at
FROM (SELECT $3::timestamptz AS at) AS moment
LEFT JOIN LATERAL (
    SELECT v.version, v.after, v.at FROM quota_events AS v WHERE v.subject = $1::text AND v.at <= moment.at ORDER BY v.version DESC LIMIT 1
) AS e ON true
LEFT JOIN LATERAL (
    SELECT w.version, w.after, w.at FROM tier_events AS w
    WHERE w.tier = COALESCE(NULLIF(e.after ->> 'tier', ''), $2::text) AND w.at <= moment.at ORDER BY w.version DESC LIMIT 1
) AS t ON true
