// Package httppeer is the DECISION stage between instances: it carries the questions of package fallback, about requests that another instance may
// have granted while Redis was away, over HTTP from one enforcement instance to another. It is no API for callers: both ends are releases of
// this service, and speak JSON that a neighbouring release understands too (fields are only ever added).
//
//	POST /internal/instances/ask, with Token
//
// When a call fails: an error. The one that asks takes the request for unknown; what the other has given up it has forgotten, so the event is made
// and the tokens are counted once, by the one that asked.
package httppeer
