-- Takes the name's lock together with others that share it, until the end of the transaction: whoever changes the name waits.
-- $1 "user:u1" or "org:o1". Locks are taken in the order user, org (by name), key: nobody waits in a circle.
SELECT set_config('lock_timeout', '5s', true), set_config('idle_in_transaction_session_timeout', '10s', true),
       pg_advisory_xact_lock_shared(hashtextextended($1::text, 0))
