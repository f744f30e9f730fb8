-- The history of a user's key, oldest first, of what happened while the user was in an org. $1 the key's subject; $2 the last version of the page
-- before, 0; $3 how many at most; $4 the org; $5 the user's subject. What happened in the millisecond of a move into the org is left out.
SELECT e.subject, e.version, e.actor, e.reason, e.before, e.after, e.at
FROM quota_events AS e
WHERE e.subject = $1 AND e.version > $2
AND $4::text = (SELECT u.after ->> 'org_id' FROM quota_events AS u WHERE u.subject = $5::text AND u.at <= e.at ORDER BY u.version DESC LIMIT 1)
AND NOT EXISTS (SELECT FROM quota_events AS m WHERE m.subject = $5::text AND m.at = e.at AND m.before ->> 'org_id' IS DISTINCT FROM $4::text)
ORDER BY e.version
LIMIT $3
