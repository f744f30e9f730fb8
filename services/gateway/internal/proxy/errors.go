package proxy

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/tollgate-dev/tollgate/pkg/client"
	"github.com/tollgate-dev/tollgate/services/gateway/internal/body"
	"github.com/tollgate-dev/tollgate/services/gateway/internal/identity"
)

// apiError is an answer in the shape of OpenAI's errors. cause is for the log.
type apiError struct {
	status         int
	kind, code     string
	message, param string
	retryAfterMS   int64
	cause          error
	outcome        string // of the request, in metrics
	limits         *client.Decision
}

func (e *apiError) Error() string { return fmt.Sprintf("%d %s: %s", e.status, e.code, e.message) }
func (e *apiError) Unwrap() error { return e.cause }

const (
	invalidRequest = "invalid_request_error"
	upstreamError  = "upstream_error"
	serverError    = "server_error"
)

func invalid(param, message string) *apiError {
	return &apiError{status: http.StatusBadRequest, kind: invalidRequest, code: "invalid_request", message: message, param: param, outcome: outcomeInvalid}
}

// asAPIError finds what an error is to the client.
func asAPIError(err error) *apiError {
	var a *apiError
	var u *identity.Unauthorized
	var f *body.FieldError
	var tooLarge *http.MaxBytesError
	var refused *client.Refused
	switch {
	case errors.As(err, &a):
		return a
	case errors.As(err, &u):
		return &apiError{status: http.StatusUnauthorized, kind: invalidRequest, code: "invalid_api_key", message: u.Detail, outcome: outcomeUnauthorized}
	case errors.As(err, &f):
		return invalid(f.Field, f.Error())
	case errors.As(err, &tooLarge):
		e := invalid("", fmt.Sprintf("The body is larger than %d bytes.", tooLarge.Limit))
		e.status, e.code = http.StatusRequestEntityTooLarge, "body_too_large"
		return e
	case errors.As(err, &refused):
		return refusal(refused.Decision)
	case errors.Is(err, identity.ErrUnavailable), errors.Is(err, errNoDecision):
		return &apiError{status: http.StatusServiceUnavailable, kind: serverError, code: "unavailable", message: "The request could not be decided now. Try again.",
			retryAfterMS: 1000, cause: err, outcome: outcomeUnavailable}
	}
	return &apiError{status: http.StatusInternalServerError, kind: serverError, code: "internal", message: "Something went wrong here.", cause: err, outcome: outcomeUnavailable}
}

// refusal maps a decision (DESIGN §8).
func refusal(d client.Decision) *apiError {
	e := &apiError{status: http.StatusBadRequest, kind: invalidRequest, code: d.Reason, outcome: outcomeRefused, limits: &d}
	of := ""
	if d.Scope != "" {
		of = " of the " + d.Scope
	}
	switch d.Reason {
	case "request_too_large":
		e.message = "The request needs more tokens than the limit" + of + " ever allows. Ask for less output, or send less input."
	case "context_too_long":
		e.message = "The request's tokens are more than the longest context that is allowed."
	case "model_not_allowed":
		e.status, e.kind, e.message, e.param = http.StatusForbidden, "permission_error", "This model is not allowed here.", "model"
	case "suspended":
		e.status, e.kind, e.message = http.StatusForbidden, "permission_error", "The account is suspended."
	case "shed":
		e.message = "The servers are too busy for this request."
	default:
		e.message = "The limit " + d.Reason + of + " is reached."
	}
	if d.RetryAfterMS > 0 { // a wait helps
		e.status, e.kind, e.code, e.retryAfterMS = http.StatusTooManyRequests, "rate_limit_exceeded", "rate_limit_exceeded", d.RetryAfterMS
		e.message += " Try again in " + strconv.FormatFloat(float64(d.RetryAfterMS)/1000, 'f', -1, 64) + " s."
	}
	return e
}

type errorBody struct {
	Error errorDetail `json:"error"`
}

type errorDetail struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    string  `json:"code"`
}

func (e *apiError) body() []byte {
	d := errorDetail{Message: e.message, Type: e.kind, Code: e.code}
	if e.param != "" {
		d.Param = &e.param
	}
	b, _ := json.Marshal(errorBody{d}) // strings can't fail
	return b
}

func (e *apiError) write(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	if e.status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", "Bearer")
	}
	if e.retryAfterMS > 0 {
		h.Set("Retry-After", strconv.FormatInt((e.retryAfterMS+999)/1000, 10))
		h.Set("Retry-After-Ms", strconv.FormatInt(e.retryAfterMS, 10))
	}
	b := append(e.body(), '\n')
	h.Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(e.status)
	_, _ = w.Write(b) // the client has gone if this fails
}
