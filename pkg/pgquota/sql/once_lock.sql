-- One call of one Idempotency-Key at a time: a second waits until the first is committed or has failed. Taken before any other lock.
-- $1 the key's hash in hex.
SELECT set_config('lock_timeout', '5s', true), set_config('idle_in_transaction_session_timeout', '10s', true),
       pg_advisory_xact_lock(hashtextextended('idempotency:' || $1::text, 0))
