// Package problem maps failures to HTTP once, at the edge: RFC 9457 problem documents with a stable code and, for bad input, the
// name of every field that is wrong. The public text never holds the private cause; the cause is for the log.
package problem

import (
	"encoding/json"
	"errors"
	"net/http"
)

// ContentType is the media type of RFC 9457.
const ContentType = "application/problem+json"

// Stable codes. Callers may switch on them; a released one keeps its meaning.
const (
	CodeInvalidRequest     = "invalid_request"     // 400: Errors names the fields
	CodeMalformedJSON      = "malformed_json"      // 400
	CodeUnauthorized       = "unauthorized"        // 401
	CodeForbidden          = "forbidden"           // 403
	CodeNotFound           = "not_found"           // 404
	CodeMethodNotAllowed   = "method_not_allowed"  // 405
	CodeConflict           = "conflict"            // 409
	CodePreconditionFailed = "precondition_failed" // 412
	CodeBodyTooLarge       = "body_too_large"      // 413
	CodeUnsupportedMedia   = "unsupported_media_type"
	CodeIdempotencyReused  = "idempotency_key_reused" // 422
	CodeTooManyRequests    = "too_many_requests"      // 429: may be repeated after Retry-After
	CodeInternal           = "internal"               // 500
	CodeUnavailable        = "unavailable"            // 503: may be repeated
)

// FieldError names one wrong field of the input by its JSON path.
type FieldError struct {
	Field  string `json:"field"`
	Detail string `json:"detail"`
}

// Problem is an RFC 9457 document and an error. Cause is never sent.
type Problem struct {
	Type      string       `json:"type"` // a URI reference: "about:blank" plus Code tells all
	Title     string       `json:"title"`
	Status    int          `json:"status"`
	Code      string       `json:"code"`
	Detail    string       `json:"detail,omitempty"`
	Errors    []FieldError `json:"errors,omitempty"`
	RequestID string       `json:"request_id,omitempty"`
	Cause     error        `json:"-"`
}

func (p *Problem) Error() string {
	s := p.Code + ": " + p.Detail
	if p.Cause != nil {
		s += ": " + p.Cause.Error()
	}
	return s
}

func (p *Problem) Unwrap() error { return p.Cause }

// New makes a problem with a public text.
func New(status int, code, detail string) *Problem {
	return &Problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Code: code, Detail: detail}
}

// Because attaches the private cause and returns p.
func (p *Problem) Because(cause error) *Problem { p.Cause = cause; return p }

// Invalid makes a 400 that names every wrong field.
func Invalid(fields ...FieldError) *Problem {
	p := New(http.StatusBadRequest, CodeInvalidRequest, "The request has invalid fields.")
	if len(fields) == 1 {
		p.Detail = fields[0].Field + ": " + fields[0].Detail
	}
	p.Errors = fields
	return p
}

// From gives the problem inside err, or a 500 that hides err as its cause.
func From(err error) *Problem {
	var p *Problem
	if errors.As(err, &p) {
		return p
	}
	return New(http.StatusInternalServerError, CodeInternal, "Something went wrong on our side.").Because(err)
}

// Write sends p. A 401 carries WWW-Authenticate, a 503 Retry-After.
func Write(w http.ResponseWriter, p *Problem) {
	h := w.Header()
	h.Set("Content-Type", ContentType)
	h.Set("Cache-Control", "no-store")
	switch p.Status {
	case http.StatusUnauthorized:
		h.Set("WWW-Authenticate", `Bearer realm="tollgate"`)
	case http.StatusServiceUnavailable:
		h.Set("Retry-After", "1")
	}
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // the client has gone if this fails
}
