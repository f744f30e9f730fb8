// Package httpapi is the REQUEST's way into the decision: JSON over HTTP as schemas/openapi/enforcement.yaml describes it.
//
// A body is decoded strictly (pkg/strictjson), checked in all its fields at once, and given to decide.Engine. Failures become problem
// documents here and nowhere else, and are logged once. Every route under /internal/ wants the service token, unknown ones too; corrections want an admin's.
//
// When a dependency fails the engine says decide.ErrUnavailable: 503 with Retry-After, and the call may be repeated with the same
// request_id; decide.ErrSpool says so more exactly. decide.ErrUnsendable is a 500 that says that a repeat is of no use. A refusal is not a failure: 200 with allowed false. What a handler panics about is a 500 and a stack in the log.
package httpapi
