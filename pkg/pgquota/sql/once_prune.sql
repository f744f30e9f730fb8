-- Forgets answers that are older than $1.
DELETE FROM idempotent_answers WHERE created_at < clock_timestamp() - $1::interval
