// Package redisbucket is the DECISION stage on Redis: it implements limit.Limiter by one script call for each decision, so that what
// is read, decided and written can't be torn apart by another instance or by a crash.
//
// # Keys, all of one org (or org-less subject) in one hash slot
//
//	tg:{shard}:b:<scope>             string: what was consumed of each limit, and when open leases end; expires when it says nothing
//	tg:{shard}:o                     hash: every open reservation, and every settled one whose event is not known to be durable
//	tg:{shard}:r:<subject>:<request> string: the tombstone of one whose event is
//	tg:{shard}:v:<name>              string: the published version (package redisfence)
//	tg:{shard}:m:<scope>:<name>:<version> string: the scope moved here with that version of its payer, and what was moved in all
//	tg:{shard}:p:<scope>             string: when the scope was shared out to several shards, and to which
//	tg:{shard}:a:<subject>:<request>:…:<scope> string: a request that lies elsewhere was corrected here
//
// A scope's state is bytes (bucket.lua tells of their form), short enough that Redis keeps it in one piece with its header: 44 bytes at most, for three limits
// of usual size. Redis has struct for that; the embedded one, which has not, a few lines of Lua (prelude.lua). The limits travel packed as well.
//
// # What it costs
//
// A grant costs four commands: TIME, MGET, SET, HSET; what a script costs in Redis is its commands and its garbage. Of Redis's own CPU time for a call by
// redis-benchmark -P 16, one scope of three limits, random users (2 cores, not quiet; least of three runs): an empty script 4.9 µs; the four commands with ready-made
// texts 14.3; the check 22.3, with text for states and numbers 30.8 before. So of what the check takes beyond the empty script more than half are the commands
// (TIME 0.9, MGET 1.1, SET with its expiry 3.8, HSET 3.2), 1.5 the names of functions that each call looks up, 3 reading state and limits, and the rest is the making of
// strings. The aim, 0.30 of the empty script's rate, leaves 2 µs beside the commands. Tried: locals instead of tables (kept; a table for each scope costs 0.6), numbers
// put into texts by %d or one pack instead of .. (kept; each conversion is 0.3 to 0.5), no function made (0.3), one string as answer (kept), a fixed expiry (1.4, but then
// states outlive what they say). What is left to try is fewer commands: the reservation inside the scope's state, one key less; it would be read and written as a whole
// at each check of a subject with many requests in flight.
//
// Ended reservations
// are found by looking through tg:{shard}:o: those are the requests in flight, not the past ones. A hot payer lies in several shards
// (limit.Spreader), its reservations each in one.
//
// # Payers that move
//
// Carry takes a payer's scopes along, and word stays where they were (bucket.lua tells of its form). settle.lua and consume.lua, when they meet word, change
// nothing and say where each scope is; adjust.lua corrects it there, once for a settlement, and then the first script does the rest (follow.go). All of it is kept for
// limit.CarryFor. A scope that hasn't moved costs an end one more key to read, and a check nothing.
//
// # When something fails
//
// Redis away or slow: an error; the caller doesn't know whether the decision was made, and repeats it with the same request id, which
// charges once. Script cache lost: go-redis sends the script again, no error. Redis restarted empty: all buckets are full,
// until Restore has put back what the ledger remembers (app.RestoreBuckets). A caller
// that dies in the middle of a move: the next one who reads the payer's quota completes it; in the middle of an end: its repeat goes on; with a stream
// or an answer on its way: its slot returns when its lease ends, and Due settles its reservation by what it held.
package redisbucket
