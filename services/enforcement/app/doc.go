// Package app wires the enforcement service: Run starts its parts in the order in which it names them and stops them in reverse. The
// service's main, standalone and the end-to-end tests all start it by Run.
//
// When a dependency is away at the start, the service starts anyway, says so at /readyz, and is ready as soon as it can decide:
//
//   - Redis: always ready. While it is away decisions are made in the process (package fallback), and taking instances out would leave none.
//     What tells of it is tollgate_limiter_degraded.
//   - Postgres: not ready until it was reached once. Later, cached quotas serve (package quotacache), so it takes no instance out.
//   - Kafka: always ready; checks are decided, and records are answered when their event is in the spool (TOLLGATE_SPOOL_DIR, packages
//     kafkausage and boltspool). Without a spool, or when it is full, records get 503. What tells of it is tollgate_spool_events and
//     tollgate_spool_oldest_seconds.
//
// When Redis has lost its data (a restart without persistence, a flush), nothing here notices: every bucket is full again, and everybody may use a second
// day's quota, until somebody calls RestoreBuckets, which puts back what the ledger knows. It is not done by itself: an instance can't tell an
// empty Redis from a new one, nor whether the ledger has caught up. What to alert on, and what to do then, is in decision 0022.
//
// A spool that can't be opened, or that another process uses, stops the start: what is in it must not be forgotten. Each instance needs a
// directory of its own, and one that is gone leaves what it holds there, until a process is started on that directory.
//
// The stop: not ready, no new connections, wait for the requests being served, tell Redis what it has missed if it is there, stop listening
// to changes, stop the drain of the spool, send the queued rejections, close Kafka, the spool, Redis, Postgres.
package app
