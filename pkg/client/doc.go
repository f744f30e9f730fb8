// Package client calls Tollgate's HTTP APIs from Go: Enforcement asks for a DECISION and reports what a request used, Quotas changes
// what was sold. The contracts are schemas/openapi. Reserve is the way to both: its Reservation is settled or cancelled once, whatever happens in
// between.
//
// Errors are *problem.Problem where the service answered with one; anything else means that no answer came. Every call is safe to
// send again with the same request id: a repeated check is answered as before, a repeated record is billed once. So a call whose
// kept-alive connection turns out to be dead is sent again at once (not a change guarded by a version, which would race itself), and Record, Adjust and Reserve also repeat themselves while the service is away.
package client
