package dialect

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/client"
)

// Error is what a client is told instead of an answer, in OpenAI's shape. RetryAfter is how long it is to wait before it asks again; 0: not at all.
type Error struct {
	Status     int
	Type       string
	Code       string
	Param      string // the field of the body to blame; "" for none
	Message    string
	RetryAfter time.Duration
}

// Types of errors, as OpenAI's clients know them, and the one of DESIGN §8.
const (
	typeRateLimit = "rate_limit_exceeded"
	typeInvalid   = "invalid_request_error"
	typeServer    = "server_error"
)

// leastWait is what a client is told that is to come again, and is told no time.
const leastWait = time.Second

// what names a limit in a message.
var what = map[string]string{
	"rpm": "requests per minute", "rph": "requests per hour", "rpd": "requests per day", "tpm": "tokens per minute", "tph": "tokens per hour", "tpd": "tokens per day",
	"itpm": "input tokens per minute", "itph": "input tokens per hour", "itpd": "input tokens per day",
	"otpm": "output tokens per minute", "otph": "output tokens per hour", "otpd": "output tokens per day",
	"concurrent": "requests at a time",
}

var whose = map[string]string{"key": "this API key", "user": "this user", "model": "this model", "org": "this organization"}

// Refusal words a decision that is not allowed. Every reason that it does not know is a limit's name.
func Refusal(d client.Decision) Error {
	wait := max(time.Duration(d.RetryAfterMS)*time.Millisecond, leastWait)
	if d.RetryAfterMS > 0 {
		wait = time.Duration(d.RetryAfterMS) * time.Millisecond
	}
	switch d.Reason {
	case "request_too_large":
		return Error{Status: http.StatusBadRequest, Type: typeInvalid, Code: d.Reason, Message: "This request needs more tokens than a limit" + of(d.Scope) + " ever holds. No wait helps: send less, or ask for fewer output tokens."}
	case "context_too_long":
		return Error{Status: http.StatusBadRequest, Type: typeInvalid, Code: "context_length_exceeded", Param: "messages", Message: "The input and the most output asked for are together longer than the context that is allowed. Send less, or ask for fewer output tokens."}
	case "model_not_allowed":
		return Error{Status: http.StatusForbidden, Type: typeInvalid, Code: d.Reason, Param: "model", Message: fmt.Sprintf("The model %s is not part of what was bought.", d.Model)}
	case "suspended":
		return Error{Status: http.StatusForbidden, Type: typeInvalid, Code: d.Reason, Message: "This account is suspended."}
	case "shed":
		return Error{Status: http.StatusTooManyRequests, Type: typeRateLimit, Code: typeRateLimit, RetryAfter: wait, Message: "The servers are overloaded, and requests of this tier are refused for now. Try again in " + seconds(wait) + "."}
	}
	limit, ok := what[d.Reason]
	if !ok {
		limit = d.Reason
	}
	return Error{Status: http.StatusTooManyRequests, Type: typeRateLimit, Code: typeRateLimit, RetryAfter: wait, Message: "The limit of " + limit + of(d.Scope) + " is reached. Try again in " + seconds(wait) + "."}
}

func of(scope string) string {
	if name, ok := whose[scope]; ok {
		return " of " + name
	}
	return ""
}

// seconds is how a wait is told to people.
func seconds(d time.Duration) string {
	return strconv.FormatFloat(roundUp(d, time.Millisecond).Seconds(), 'f', -1, 64) + " s"
}

// Unauthorized is for a credential that is missing, wrong or revoked. The message is the caller's: it must not hold the credential.
func Unauthorized(message string) Error {
	return Error{Status: http.StatusUnauthorized, Type: typeInvalid, Code: "invalid_api_key", Message: message}
}

// Unavailable is for a decision that could not be made, as for a tier that is closed while Redis is away.
func Unavailable() Error {
	return Error{Status: http.StatusServiceUnavailable, Type: typeServer, Code: "unavailable", RetryAfter: leastWait, Message: "No decision about this request could be made in time. Try again."}
}

// Invalid is for a body that can't be read; param is the field to blame, or "".
func Invalid(param, message string) Error {
	return Error{Status: http.StatusBadRequest, Type: typeInvalid, Code: "invalid_request", Param: param, Message: message}
}

// Body is the error as JSON.
func (e Error) Body() []byte {
	type inner struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    string  `json:"code"`
	}
	in := inner{Message: e.Message, Type: e.Type, Code: e.Code}
	if e.Param != "" {
		in.Param = &e.Param
	}
	b, err := json.Marshal(struct {
		Error inner `json:"error"`
	}{in})
	if err != nil { // strings always marshal
		return []byte(`{"error":{"message":"","type":"server_error","param":null,"code":"internal"}}`)
	}
	return b
}

// Headers are those that say when to come again, and for whom to log in.
func (e Error) Headers() http.Header {
	h := http.Header{}
	if e.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", "Bearer")
	}
	if e.RetryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt(int64(roundUp(e.RetryAfter, time.Second)/time.Second), 10))
		h.Set("retry-after-ms", strconv.FormatInt(int64(roundUp(e.RetryAfter, time.Millisecond)/time.Millisecond), 10))
	}
	return h
}

// Write sends the error. What else its headers are to say is set before, such as Dialect.Headers.
func (e Error) Write(w http.ResponseWriter) {
	h := w.Header()
	for name, values := range e.Headers() {
		h[name] = values
	}
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(e.Status)
	_, _ = w.Write(append(e.Body(), '\n')) // the client has gone if this fails
}
