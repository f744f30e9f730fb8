// Package api is the quota admin API over HTTP (schemas/openapi/quota.yaml): the CONTROL side, where people change what was sold.
//
// Every call but the three probes needs a bearer token, whatever its path: who may not come in learns nothing of what exists. Errors are
// RFC 9457 problem documents; bad input is answered with every wrong field at once.
//
// An API key's secret, or an admin token, is made here, stands in the one answer that made it, and is nowhere else: what is stored is its hash, and,
// for a day, the answer to a POST with an Idempotency-Key, encrypted under what only its caller knows (once.go). Who may what is access.go; an
// org-admin's calls are bound to its org under the locks of the change (pgquota.Within).
//
// A change is answered after its change is committed and published to Redis, so the next check anywhere sees it. If Redis can't be reached
// within a second the change is kept, the answer says propagation "pending", and the relay publishes it later. If Postgres fails the
// answer is 503; the change may have been made if the commit itself went unanswered, and the same PUT may be sent again.
package api
