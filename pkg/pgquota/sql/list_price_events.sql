-- The history of one model's prices, oldest first. $1 model; $2 the last version of the page before, 0; $3 how many at most, null: all.
SELECT e.model, e.version, e.valid_from, e.actor, e.reason, e.before, e.after, e.at
FROM price_events AS e
WHERE e.model = $1 AND e.version > $2
ORDER BY e.version
LIMIT $3
