-- One tier's history, oldest first. $1 tier; $2 the last version of the page before, 0; $3 how many at most.
SELECT e.tier, e.version, e.actor, e.reason, e.before, e.after, e.at
FROM tier_events AS e
WHERE e.tier = $1 AND e.version > $2
ORDER BY e.version
LIMIT $3
