-- Keeps an answer; one that is forgotten gives its place. $1 the key's hash; $2 the request's hash; $3 the answer, encrypted.
INSERT INTO idempotent_answers (key_hash, request_hash, answer, created_at)
VALUES ($1, $2, $3, clock_timestamp())
ON CONFLICT (key_hash) DO UPDATE SET request_hash = excluded.request_hash, answer = excluded.answer, created_at = excluded.created_at
