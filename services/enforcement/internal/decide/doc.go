// Package decide is the DECISION stage: it turns what was sold (a plan: the key's quota, the user's, the org's pool) and what is asked (a
// request) into one question to the limiter, and the limiter's answer into what the caller sees. Ending a request is here too: the settlement becomes one usage EVENT.
//
// The arithmetic is the limiter's (pkg/limit); the rules here are pure functions: Scopes, Rooms, refusal, buildRecord. Engine joins
// them to three seams: Quotas, limit.Limiter, Events.
//
// A plan depends on several versions, each with a fence of its own: key, user, tier, org. Whichever was changed, the limiter refuses the
// older plan, and the question is asked again by a newer one. Where the payer has moved, Carrying has its consumption follow, and the limiter is told where a
// request may lie that was let in before (earlier).
//
// Under load (package shed) a request may be refused, or be given a smaller model, before the limiter is asked for tokens; both by figures
// that are in memory. A request id that was granted before keeps its answer, whatever the load is by then.
//
// # When a dependency fails
//
//   - Postgres away: plans that are cached are used until their time ends; a subject that isn't cached gets ErrUnavailable.
//   - Redis away or slow: decided by the tier's redis_away (package fallback), within the budget; the answer is degraded. ErrUnavailable
//     only for a tier whose policy is closed. A record answers when its event is durable, as ever; Redis hears of it when it is back.
//   - Kafka away: Record answers when the event is in the local spool, which counts as durable. Without a spool, or when it takes no more
//     (ErrSpool), it answers ErrUnavailable after the settlement. The settlement keeps what the event says, so a repeat emits
//     the same event, with the same id, and charges nothing twice. Rejections wait in a queue and may be lost; usage never is.
//   - Kafka refuses an event for good: ErrUnsendable. The event is set aside and noted as durable, so nobody sends it again.
//
// # What a crash costs, and what removes the repeat
//
//   - after the check, before the answer: the caller repeats it by its request id, or the lease ends.
//   - after the settlement, before Kafka or the spool has the event: the caller, which got no answer, repeats; the settlement is remembered
//     (limit.DefaultTombstone) with the first call's figures and the event is made from them.
//   - after Kafka or the spool has the event, before it is noted: the repeat sends the same event again; its event_id removes it downstream.
package decide
