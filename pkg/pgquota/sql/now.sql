-- The database's clock in whole milliseconds, as JSON shows it; not the transaction's start, which lies before the wait for the lock.
SELECT date_trunc('milliseconds', clock_timestamp())
