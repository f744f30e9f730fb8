// Package redisbucket is the DECISION stage on Redis: it implements limit.Limiter by one script call for each decision, so that what
// is read, decided and written can't be torn apart by another instance or by a crash.
//
// # Keys, all of one org (or org-less subject) in one hash slot
//
//	tg:{shard}:b:<scope>             string: what was consumed of each limit, and when open leases end; expires when it says nothing
//	tg:{shard}:r:<subject>:<request> string: the reservation, then its tombstone
//	tg:{shard}:v:<name>              string: the published version (package redisfence)
//	tg:{shard}:x:<n>                 list: what becomes due by second 5n: leases that end, settled ones whose event may not be durable
//	tg:{shard}:x                     sorted set: those lists
//
// A decision reads with one MGET and writes two strings and a list's tail: what a script costs in Redis is its calls.
//
// # When something fails
//
// Redis away or slow: an error; the caller doesn't know whether the decision was made, and repeats it with the same request id, which
// charges once. Script cache lost: go-redis sends the script again, no error. Redis restarted empty: all buckets are full. A caller
// that dies: its slot returns when its lease ends, and Due settles its reservation by what it held.
package redisbucket
