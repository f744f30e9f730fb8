-- One subject's history, oldest first. $1 subject; $2 the last version of the page before, 0; $3 how many at most; $4 only what led into or out of
-- this org or happened within it, '' for all.
SELECT e.subject, e.version, e.actor, e.reason, e.before, e.after, e.at
FROM quota_events AS e
WHERE e.subject = $1 AND e.version > $2 AND ($4::text = '' OR e.before ->> 'org_id' = $4 OR e.after ->> 'org_id' = $4)
ORDER BY e.version
LIMIT $3
