package proxy

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/tollgate-dev/tollgate/pkg/client"
	"github.com/tollgate-dev/tollgate/services/gateway/internal/body"
	"github.com/tollgate-dev/tollgate/services/gateway/internal/dialect"
	"github.com/tollgate-dev/tollgate/services/gateway/internal/identity"
)

// told is what the client reads.
type told = dialect.Error

// apiError is what the client is told instead of an answer.
type apiError struct {
	told
	cause   error            // for the log
	outcome string           // of the request, in metrics
	limits  *client.Decision // for the headers, if they are known
}

func (e *apiError) Error() string { return fmt.Sprintf("%d %s: %s", e.Status, e.Code, e.Message) }
func (e *apiError) Unwrap() error { return e.cause }

const (
	typeInvalid   = "invalid_request_error"
	typeRateLimit = "rate_limit_exceeded"
	typeUpstream  = "upstream_error"
	typeServer    = "server_error"
)

func invalid(param, message string) *apiError {
	return &apiError{told: dialect.Invalid(param, message), outcome: outcomeInvalid}
}

// refusedAs is a fault in a request with a status and a code of its own.
func refusedAs(status int, code, message string) *apiError {
	return &apiError{told: dialect.Error{Status: status, Type: typeInvalid, Code: code, Message: message}, outcome: outcomeInvalid}
}

func upstreamFailed(status int, code, message string, cause error) *apiError {
	return &apiError{told: dialect.Error{Status: status, Type: typeUpstream, Code: code, Message: message}, cause: cause, outcome: outcomeFailed}
}

func refusal(d client.Decision) *apiError {
	return &apiError{told: dialect.Refusal(d), outcome: outcomeRefused, limits: &d}
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
		return &apiError{told: dialect.Unauthorized(u.Detail), outcome: outcomeUnauthorized}
	case errors.As(err, &f):
		return invalid(f.Field, f.Error())
	case errors.As(err, &tooLarge):
		return refusedAs(http.StatusRequestEntityTooLarge, "body_too_large", fmt.Sprintf("The body is larger than %d bytes.", tooLarge.Limit))
	case errors.As(err, &refused):
		return refusal(refused.Decision)
	case errors.Is(err, identity.ErrUnavailable), errors.Is(err, errNoDecision):
		return &apiError{told: dialect.Unavailable(), cause: err, outcome: outcomeUnavailable}
	}
	return &apiError{told: dialect.Error{Status: http.StatusInternalServerError, Type: typeServer, Code: "internal", Message: "Something went wrong here."}, cause: err, outcome: outcomeUnavailable}
}
