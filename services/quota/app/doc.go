// Package app is the quota service as a whole: Run starts its parts in order and stops them in reverse.
//
// When a dependency fails: without Postgres the service does not start; if it goes away later, /readyz says so and calls answer 503 until
// it is back. Without Redis changes are kept and answered with propagation "pending", and published when it is back; enforcement decides
// by cached quotas meanwhile, for a minute at most. Without Kafka changes wait in the outbox. Neither makes the service unready: a change
// of quota must be possible in an outage.
//
// What a crash leaves: nothing before the commit; after it the change is in the outbox, from where this or another instance publishes it
// to Redis (within a second) and to Kafka. What was sent but not marked as sent goes out again: versions in Redis only rise, and a
// repeated event has the same event_id.
package app
