package proxy

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
	jsonv1 "github.com/go-json-experiment/json/v1"

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

// present tells that a member was there and not null, however often.
type present bool

// UnmarshalJSON implements json.Unmarshaler.
func (p *present) UnmarshalJSON(text []byte) error {
	*p = *p || string(text) != "null"
	return nil
}

// chunk is what is read in an event of a stream, and in a whole answer.
type chunk struct {
	ID      json.RawMessage `json:"id"`
	Object  json.RawMessage `json:"object"`
	Created json.RawMessage `json:"created"`
	Model   json.RawMessage `json:"model"`
	Choices []choice        `json:"choices"`
	Usage   present         `json:"usage"` // in any case of letters, as encoding/json reads: usages tells
}

// read reads what data has of a chunk, by encoding/json's rules and in half of its time: a field of an unexpected type is left out, and is the
// client's to understand. Error: data is no JSON.
func (c *chunk) read(data []byte) error {
	err := jsonv1.Unmarshal(data, c)
	var wrong *jsonv1.UnmarshalTypeError
	if errors.As(err, &wrong) {
		return nil
	}
	return err
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

type choice struct {
	Index        int     `json:"index"`
	Text         string  `json:"text"`
	Delta        message `json:"delta"`
	Message      message `json:"message"`
	FinishReason *string `json:"finish_reason"`
}

// message is what a choice says. Texts are strings, and with some servers objects or lists of parts.
type message struct {
	Content   any `json:"content"`
	Reasoning any `json:"reasoning_content"`
	Thinking  any `json:"reasoning"`
	Refusal   any `json:"refusal"`
	Audio     any `json:"audio"` // its transcript; how many tokens the sound was nobody knows
	ToolCalls []struct {
		Function called `json:"function"`
	} `json:"tool_calls"`
	FunctionCall called `json:"function_call"`
}

type called struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// produced calls add with each piece of text that was generated.
func (c choice) produced(add func(string)) {
	add(c.Text)
	for _, m := range []message{c.Delta, c.Message} {
		for _, v := range []any{m.Content, m.Reasoning, m.Thinking, m.Refusal, m.Audio} {
			texts(v, add)
		}
		for _, t := range m.ToolCalls {
			add(t.Function.Name)
			add(t.Function.Arguments)
		}
		add(m.FunctionCall.Name)
		add(m.FunctionCall.Arguments)
	}
}

// textIn are the fields of a part that bear text.
var textIn = []string{"text", "content", "thinking", "reasoning", "summary", "refusal", "transcript"}

// texts finds the texts in v: itself, or those of its parts.
func texts(v any, add func(string)) {
	switch v := v.(type) {
	case string:
		add(v)
	case []any:
		for _, e := range v {
			if _, part := e.(map[string]any); part {
				texts(e, add)
			}
		}
	case map[string]any:
		for _, name := range textIn {
			texts(v[name], add)
		}
	}
}
