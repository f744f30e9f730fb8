// Package pgquota keeps what was sold in Postgres: the tier catalogue, each subject's quota, API keys, org pools and the price book. It is the CONTROL side of
// a DECISION: enforcement reads plans through it (all that decides over one subject, in one statement), the quota API changes them.
//
// A change is one transaction: an event is appended (quota_events, tier_events: the truth, append-only in the database), the projection
// (quotas, org_quotas, tiers) becomes the event's After, and the outbox gets a row for Redis and Kafka. Changes of one subject or tier come one after
// the other, under a lock of its name, so versions have no gaps and outbox ids of one name grow with its versions. Fold derives the
// projection from the events alone.
//
// A key's row in api_keys has what no event may tell: the hash and the visible beginning of its secret. Where a change must be known in Redis
// depends on the owner and the org; place.go says how that is kept true while those change.
//
// Prices change the same way (price_events, prices), but no decision depends on them: their outbox rows go to Kafka only.
//
// What a change says: the limits of a Change are the whole set of the subject's own limits, an omitted one is the tier's again; tier, org
// and suspended are kept where they are omitted. A change that changes nothing makes no event and no version.
//
// When Postgres fails: reads and writes return errors that wrap the driver's. A write whose commit was not answered may or may not have
// happened; repeating it with the same precondition tells (a version mismatch means it did, or that someone else was faster), repeating
// it without is harmless, for it states a whole quota. After a restart of Postgres the pool drops its dead connections by itself; a read
// that met one is tried once more. A client that dies in mid-transaction leaves nothing, and its lock is gone after ten seconds at most.
package pgquota
