package dialect

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/tollgate-dev/tollgate/pkg/client"
)

// Dialect is a way to word the headers.
type Dialect string

// The dialects.
const (
	Tollgate  Dialect = "tollgate"
	OpenAI    Dialect = "openai"
	Anthropic Dialect = "anthropic"
	IETF      Dialect = "ietf"
)

// Parse reads a dialect's name; "" is Tollgate.
func Parse(name string) (Dialect, error) {
	switch d := Dialect(name); d {
	case "":
		return Tollgate, nil
	case Tollgate, OpenAI, Anthropic, IETF:
		return d, nil
	}
	return "", fmt.Errorf("must be tollgate, openai, anthropic or ietf, is %q", name)
}

// The dimensions of every decision (DESIGN §4). Others may follow.
const (
	requests   = "requests"
	minute     = "tokens_1m"
	day        = "tokens_1d"
	inMinute   = "input_tokens_1m"
	outMinute  = "output_tokens_1m"
	concurrent = "concurrent"
)

// room is one limited dimension.
type room struct {
	name             string
	limit, remaining int64
	resetAt          time.Time // zero: there is none
}

// rooms gives what is limited: the standard dimensions in their order, then the others by name.
func rooms(d client.Decision) []room {
	order := []string{requests, minute, day, concurrent}
	for _, name := range slices.Sorted(maps.Keys(d.Limit)) {
		if !slices.Contains(order, name) {
			order = append(order, name)
		}
	}
	var out []room
	for _, name := range order {
		limit, left := d.Limit[name], d.Remaining[name]
		if limit == nil || left == nil {
			continue
		}
		r := room{name: name, limit: *limit, remaining: *left}
		if at := d.ResetAt[name]; at != nil {
			r.resetAt = *at
		}
		out = append(out, r)
	}
	return out
}

// tightest is the one with the least left among some dimensions, the first of equals.
func tightest(all []room, names ...string) (best room, ok bool) {
	for _, name := range names {
		for _, r := range all {
			if r.name == name && (!ok || r.remaining < best.remaining) {
				best, ok = r, true
			}
		}
	}
	return best, ok
}

// Headers words what is left, by net/http's canonical names. A decision that says nothing of limits (none could be made) has none.
func (d Dialect) Headers(dec client.Decision, now time.Time) http.Header {
	h := http.Header{}
	all := rooms(dec)
	switch d {
	case OpenAI:
		d.openAI(h, all, now)
	case Anthropic:
		d.anthropic(h, all)
	case IETF:
		d.ietf(h, all, now)
	default:
		for name, value := range dec.Headers {
			h.Set(name, value)
		}
	}
	return h
}

func (Dialect) openAI(h http.Header, all []room, now time.Time) {
	note := func(kind string, r room, ok bool) {
		if !ok {
			return
		}
		h.Set("x-ratelimit-limit-"+kind, strconv.FormatInt(r.limit, 10))
		h.Set("x-ratelimit-remaining-"+kind, strconv.FormatInt(r.remaining, 10))
		if !r.resetAt.IsZero() {
			h.Set("x-ratelimit-reset-"+kind, roundUp(until(r.resetAt, now), time.Millisecond).String())
		}
	}
	r, ok := tightest(all, requests)
	note("requests", r, ok)
	r, ok = tightest(all, minute, day)
	note("tokens", r, ok)
}

func (Dialect) anthropic(h http.Header, all []room) {
	for _, kind := range []struct {
		name string
		of   []string
	}{{"requests", []string{requests}}, {"tokens", []string{minute, day}}, {"input-tokens", []string{inMinute}}, {"output-tokens", []string{outMinute}}} {
		r, ok := tightest(all, kind.of...)
		if !ok {
			continue
		}
		name := "anthropic-ratelimit-" + kind.name
		h.Set(name+"-limit", strconv.FormatInt(r.limit, 10))
		h.Set(name+"-remaining", strconv.FormatInt(r.remaining, 10))
		if !r.resetAt.IsZero() {
			at := r.resetAt.UTC().Truncate(time.Second)
			if at.Before(r.resetAt) {
				at = at.Add(time.Second)
			}
			h.Set(name+"-reset", at.Format(time.RFC3339))
		}
	}
}

// mostInteger is the largest of structured fields (RFC 9651 §3.3.1).
const mostInteger int64 = 999_999_999_999_999

func (Dialect) ietf(h http.Header, all []room, now time.Time) {
	var policies, limits httpsfv.List
	for _, r := range all {
		name := strings.ReplaceAll(r.name, "_", "-")
		policy, left := httpsfv.NewItem(name), httpsfv.NewItem(name)
		policy.Params.Add("q", min(r.limit, mostInteger))
		if unit := unitOf(r.name); unit != requests { // which is the draft's default
			policy.Params.Add("qu", unit)
		}
		if w := windowOf(r.name); w > 0 {
			policy.Params.Add("w", int64(w/time.Second))
		}
		left.Params.Add("r", min(r.remaining, mostInteger))
		if !r.resetAt.IsZero() {
			left.Params.Add("t", int64(roundUp(until(r.resetAt, now), time.Second)/time.Second))
		}
		policies, limits = append(policies, policy), append(limits, left)
	}
	for name, list := range map[string]httpsfv.List{"RateLimit-Policy": policies, "RateLimit": limits} {
		if text, err := httpsfv.Marshal(list); err == nil && text != "" { // names and integers are valid
			h.Set(name, text)
		}
	}
}

// unitOf is the quota unit of a dimension.
func unitOf(dimension string) string {
	switch {
	case dimension == concurrent:
		return "concurrent-requests"
	case strings.HasPrefix(dimension, requests):
		return requests
	}
	kind, _, _ := strings.Cut(dimension, "_1")
	return strings.ReplaceAll(kind, "_", "-") // tokens, input-tokens, output-tokens
}

// windowOf is the window of a dimension; 0 if it has none.
func windowOf(dimension string) time.Duration {
	switch {
	case dimension == requests || strings.HasSuffix(dimension, "_1m"):
		return time.Minute
	case strings.HasSuffix(dimension, "_1h"):
		return time.Hour
	case strings.HasSuffix(dimension, "_1d"):
		return 24 * time.Hour
	}
	return 0
}

// until is never negative, and bounded: the reset of a bucket in deep debt may lie thousands of years ahead.
func until(at, now time.Time) time.Duration { return max(0, at.Sub(now)) }

func roundUp(d, unit time.Duration) time.Duration {
	if down := d.Truncate(unit); down < d && down <= 1<<63-1-unit {
		return down + unit
	}
	return d.Truncate(unit)
}
