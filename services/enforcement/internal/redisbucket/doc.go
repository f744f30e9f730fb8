// Package redisbucket is the DECISION stage on Redis: it implements limit.Limiter by one script call for each decision, so that what
// is read, decided and written can't be torn apart by another instance or by a crash.
//
// # Keys, all of one org (or org-less subject) in one hash slot
//
//	tg:{shard}:b:<scope>             string: what was consumed of each limit, and when open leases end; expires when it says nothing
//	tg:{shard}:o                     hash: every open reservation, and every settled one whose event is not known to be durable
//	tg:{shard}:r:<subject>:<request> string: the tombstone of one whose event is
//	tg:{shard}:v:<name>              string: the published version (package redisfence)
//	tg:{shard}:m:<scope>:<name>:<version> string: the scope moved here with that version of its payer; tg:{shard}:c:… what it brought
//
// A grant costs four commands: TIME, MGET, SET, HSET; what a script costs in Redis is its commands and its garbage. Ended reservations
// are found by looking through tg:{shard}:o: those are the requests in flight, not the past ones. A hot payer lies in several shards
// (limit.Spreader), its reservations each in one.
//
// # When something fails
//
// Redis away or slow: an error; the caller doesn't know whether the decision was made, and repeats it with the same request id, which
// charges once. Script cache lost: go-redis sends the script again, no error. Redis restarted empty: all buckets are full,
// until Restore has put back what the ledger remembers (app.RestoreBuckets). A caller
// that dies: its slot returns when its lease ends, and Due settles its reservation by what it held.
package redisbucket
