-- Refused attempts, the newest first. $1 the last id of the page before, 0 for the first page; $2 how many at most.
SELECT r.id, r.instance, r.reason, r.actor, r.address, r.method, r.path, r.request_id, r.attempts, r.first_at, r.last_at
FROM access_refusals AS r
WHERE $1::bigint = 0 OR r.id < $1
ORDER BY r.id DESC
LIMIT $2
