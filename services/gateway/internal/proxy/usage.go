package proxy

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/services/gateway/internal/body"
)

// figure is a count of tokens that a server gives: a whole number, also as 16.0, 1.6e1 or "16". Anything else, and what could not be billed, is no
// figure: a server that says nonsense has said nothing.
type figure struct {
	n  int64
	ok bool
}

// UnmarshalJSON implements json.Unmarshaler. It fails never: one figure that is none leaves the others.
func (f *figure) UnmarshalJSON(text []byte) error {
	*f = figure{}
	if text[0] == '"' {
		text = bytes.Trim(text, `"`)
		if len(text) == 0 || text[0] != '-' && (text[0] < '0' || text[0] > '9') || !json.Valid(text) {
			return nil
		}
	}
	n, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil {
		v, err := strconv.ParseFloat(string(text), 64)
		if err != nil || v != math.Trunc(v) || math.Abs(v) > float64(limit.MaxAmount) { // up to there floats are exact
			return nil //nolint:nilerr // it is no figure, which is no error
		}
		n = int64(v)
	}
	if n >= 0 && n <= limit.MaxAmount/2 {
		*f = figure{n, true}
	}
	return nil
}

// figures is the usage that a server gives.
type figures struct {
	prompt, completion, cached figure
}

// UnmarshalJSON implements json.Unmarshaler. It fails never.
func (u *figures) UnmarshalJSON(text []byte) error {
	var in struct {
		Prompt     figure          `json:"prompt_tokens"`
		Completion figure          `json:"completion_tokens"`
		Details    json.RawMessage `json:"prompt_tokens_details"`
	}
	var details struct {
		Cached figure `json:"cached_tokens"`
	}
	_ = json.Unmarshal(text, &in) // no object: no figures
	if len(in.Details) > 0 {
		_ = json.Unmarshal(in.Details, &details)
	}
	*u = figures{in.Prompt, in.Completion, details.Cached}
	return nil
}

// usages calls f with each usage in an event or answer: the members of exactly that name that are not null, in order.
func usages(data []byte, f func(figures)) {
	_ = body.Members(data, func(name string, kind jsontext.Kind, v body.Span) error {
		if name == "usage" && kind != 'n' {
			var u figures
			_ = u.UnmarshalJSON(v.Of(data))
			f(u)
		}
		return nil
	})
}

// withoutUsage is an event's data with each usage set to null.
func withoutUsage(data []byte) []byte {
	var out []byte
	at := 0
	_ = body.Members(data, func(name string, _ jsontext.Kind, v body.Span) error {
		if name == "usage" {
			out = append(append(out, data[at:v.Start]...), "null"...)
			at = v.End
		}
		return nil
	})
	return append(out, data[at:]...)
}
