// Package app wires the gateway: Run starts its parts in the order in which it names them and stops them in reverse. The service's main, standalone
// and the end-to-end tests all start it by Run.
//
// When a dependency is away, the gateway starts anyway. It is ready once Postgres was reached, where API keys are looked up; enforcement and
// the inference server are not asked: an instance that can't reach them is no worse than the others, and answers 503 or 502.
// Without Redis, revocations are not announced; they hold all the same (package identity).
//
// The stop: not ready, no new connections, wait for the requests being served, break off the streams that last longer than that (they are billed as
// cancelled), wait for the settlements, stop listening to changes, close Redis, Postgres.
package app
