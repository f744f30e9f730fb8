-- What the call was answered, unless that is forgotten. $1 the key's hash; $2 for how long answers are kept.
SELECT a.request_hash, a.answer
FROM idempotent_answers AS a
WHERE a.key_hash = $1 AND a.created_at > clock_timestamp() - $2::interval
