// Package fallback is the DECISION stage while its store, Redis, is away, black-holed or slow: a limit.Limiter around the store's. It asks the
// store as long as that answers in time, decides in this process while it doesn't, and tells it afterwards what it has missed. No request waits
// for a store that is away, and none is refused because a store is; but an instance's share is used up sooner than the whole.
//
// # In time
//
// A check waits for the store for half of its budget at most (Options.Share), and is then decided here. Five failures in a row open a circuit
// breaker: from then on nobody waits. Only failures of the store count: not a *limit.StaleError, a request that is wrong, or a caller that
// left the store too little time. A forgotten script is loaded again by the store's adapter, and is no failure. While the breaker is open one
// probe at a time, at no caller's expense, writes a beat; one that is answered within a check's share closes it. A store that answers everything
// after 500 ms is away.
//
// # When Redis fails
//
//   - local (the default): the same rules, by limit.Memory, each capacity and number of slots divided by the number of live instances, at
//     least 1. The answer's limits are that share. What fits the capacity but no share is refused by its limit's name, with a hint for a wait.
//   - open: allowed, counted nowhere now; what it used is counted when the store is back.
//   - closed: an error, which the caller gets as 503.
//
// Answers are Degraded, also those of single calls that the store was too slow for. The number of instances is the last one counted; an instance
// that starts while the store is away counts itself alone.
//
// A payer that is spread over several shards of the store is one here. A settle of what is known only (Known) finds what this instance has
// granted, or the store has granted to it.
//
// A payer that moves while the store is away is carried along when it is back. A request is known here by where its payer was when it was granted; its end says where
// that may have been (Earlier), and so does the question to another instance.
//
// A version fence can't be asked; the quota is the caller's cached one, or Postgres's.
//
// An outage begins with an empty memory, but for what an earlier one has left: what a subject consumed just before is unknown here. So in
// an outage a subject gets at most one capacity more than was sold, over all instances together, and then the rate that was sold. What was used is
// all told to the store afterwards, where it is debt that drains before more is admitted. Requests that are in flight at the return, granted here,
// hold no slot in the store.
//
// A payer has at most max(slots, instances) requests in flight over all instances, for each has one slot at least.
//
// # Several instances behind a balancer
//
// The end of a request may reach another instance than its check did. An instance that doesn't know a request, and whose store is away or doesn't
// know it either, asks all others at once (Peers, Question): for 100 ms at a record or a cancel, for half of Share at a consume.
//
//   - Whoever has granted it gives it up: slot and tokens are settled there at once, so that its share is free again, and the one that asked makes the
//     event and tells the store. A consume is drawn there, and the request stays there.
//   - Whoever has ended it says so, and the repeat changes nothing.
//   - Whoever the store has granted it to tells what the event is to say of the check.
//
// No answer is as good as no: the request is unknown then, debited in full and billed once. An instance that fails to answer is asked again after a
// second, and is believed alive for a lease after it was last counted, for it may be cut off from the store and hold requests. A check asks nobody: a request
// that is checked at two instances is granted twice. A third that is told of its end has both give it up; if one of the two is told, the other's expires, and
// the event of that gives way to the real one in the ledger.
//
// # How a request ends
//
// Where it was granted tells the way, whether or not the store is back:
//
//   - granted here, and ended here: consumed and settled here, its event made from the check that is kept here; then the store is told. If nobody records
//     it, Due offers it here when its lease ends.
//   - granted by the store: settled there. While that is away, here: the event is made from what is remembered of the store's latest grants of
//     this instance or another, else from the record alone. A stream goes on, uncounted; the store renews its lease and counts its tokens when it is back,
//     and its record settles all.
//   - refused here, or given an error, after the store had been asked: taken back (Cancel), for the store may have granted it. Once more five
//     seconds later, should the first call have arrived late. The same for what was then granted here: the reservation is this instance's alone.
//
// The store is told request by request, under the request's id, so that what it knows already counts once: Settle, then MarkEmitted once
// the event is durable. What was granted here is told when its event is durable, for only this instance can make that event.
// What the store holds nothing for is debited as a burst of its age would have left it (limit.SettleRequest): use of an hour is no debt of an hour.
//
// All this is bounded (Options.Most; an open request takes 1 kB, a settled one an estimated 1.5): a request that is granted here has its place for its record. When nothing is left, checks and
// records that need a place get ErrFull, and nothing is forgotten.
//
// # What a crash costs, and what removes the repeat
//
//   - of this instance, while it keeps what the store is to be told: events that were answered are durable. What was granted by the store
//     expires there and leaves a second event of the same event_id, expired, which gives way to the real one in the ledger
//     (migrations/clickhouse/00003). What was granted here is missing in the store's buckets: the subject gets that much more.
//   - of this instance, with open requests that were granted here: a record at another instance is debited in full, as of an unknown
//     request. If the caller dies as well, the request is billed to nobody.
//   - of an instance that was asked, or of the wire, before its answer arrived: it may have given the request up, and remembers nothing of it.
//     The one that asked takes it for unknown, as above.
//   - of the one that asked, after it was given a request and before the event was durable: nobody has answered the record. Its repeat meets instances
//     that don't know it, as above; without a repeat the request is billed to nobody.
//   - of the store, without its data: all buckets are full; what is kept here is told to it all the same.
//   - a second record that meets an instance during an outage while the one that took the first doesn't answer, or has forgotten it: the event
//     again, with the same event_id, and debited once.
package fallback
