// Package app wires the gateway: Run starts its parts in the order in which it names them and stops them in reverse. The service's main, standalone
// and the end-to-end tests all start it by Run.
//
// When a dependency is away, the gateway starts anyway. It is ready once Postgres was reached, where API keys are looked up; enforcement and
// the inference server are not asked: an instance that can't reach them is no worse than the others, and answers 503 or 502.
// Without Redis, revocations are not announced; they hold all the same (package identity).
//
// What a connection may ask for: headers of 32 KiB a request (net/http lets some KiB more pass by HTTP/1.1, and 320 bytes by HTTP/2, then answers 431), within 5 s; by HTTP/2,
// which is spoken without TLS to who begins with it, 250 streams at once, each with 256 KiB, all with 1 MiB that have not been read. A stream that is reset counts
// until its handler has returned: of such 1,000 more may wait for their turn, then the connection is closed (ENHANCE_YOUR_CALM). How many connections there
// may be is for what stands before the gateway to say.
//
// The stop: not ready, no new connections, wait for the requests being served, break off the streams that last longer than that (they are billed as
// cancelled), wait for the settlements, stop listening to changes, close Redis, Postgres.
package app
