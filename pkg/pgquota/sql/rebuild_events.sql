-- The histories of some names, each oldest first. $1 names.
SELECT e.subject, e.version, e.actor, e.reason, e.before, e.after, e.at
FROM quota_events AS e
WHERE e.subject = ANY($1::text[])
ORDER BY e.subject, e.version
