// Package limit is the DECISION stage: may this be spent now? It holds the arithmetic of a bucket as pure functions, the Limiter
// contract, and Memory, the in-process implementation that is also the model which the Redis script is tested against.
//
// # The bucket
//
// A bucket holds what was consumed, not what is left: available = capacity − consumed, and consumed drains at capacity per window. A
// missing bucket is a full one. All numbers are integers: the consumed tokens, and the part of one token that has drained already in
// units of 1/window ms. So a million operations do not drift, polling every millisecond does not starve the drain, and the same call
// sequence gives the same answers in Go and in Lua, whose numbers are exact up to 2^53−1.
//
// # Changed capacities
//
// A raised capacity gives its new room at once. A lowered one leaves consumed as it is; what exceeds the new capacity drains away within
// one window, by a faster rate that lasts until consumed is down at the capacity, and nothing is admitted until then. So nobody is locked
// out for longer than a window and one request's wait, and nobody gains a token by switching back and forth. A bucket takes on a new
// capacity at its first operation after the change, and drains at the old one until then. Consumption above the capacity that has another
// cause (a request that used more than it reserved) is debt, and drains no faster.
//
// # More than one shard
//
// A payer that one shard can't serve lies over several (Spread). Spreader decides for it on a Lender, whose shards lend each other room, so that all
// together never admit more than the whole allows. Who moves, to another org or number of shards, takes its consumption along (Carrier); requests that
// are open meanwhile end where they were made (Earlier), and what they hold is corrected where it lies by then.
//
// # What a failure costs
//
// Memory cannot fail. An implementation on a store that can't be asked returns an error, and the caller doesn't know whether its check
// was done: it repeats it with the same request id, which charges once.
package limit
