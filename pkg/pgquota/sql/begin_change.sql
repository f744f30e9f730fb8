-- Takes the name's lock until the end of the transaction: two changes of one subject or tier come one after the other, the first PUT of
-- a new one included (there is no row to lock yet).
-- $1 "user:u1", "api_key:k1" or "tier:plus". A client that vanishes in mid-transaction holds the lock for 10 s at most.
SELECT set_config('lock_timeout', '5s', true), set_config('idle_in_transaction_session_timeout', '10s', true),
       pg_advisory_xact_lock(hashtextextended($1::text, 0))
