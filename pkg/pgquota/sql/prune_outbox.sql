-- Drops what both have had for longer than $1.
DELETE FROM outbox WHERE redis_published_at < now() - $1::interval AND kafka_published_at < now() - $1::interval
