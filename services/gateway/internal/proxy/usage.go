package proxy

import (
	"encoding/json"

	"github.com/tollgate-dev/tollgate/pkg/limit"
)

// figures is the usage that a server gives.
type figures struct {
	Prompt     *int64 `json:"prompt_tokens"`
	Completion int64  `json:"completion_tokens"`
	Details    struct {
		Cached int64 `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// sound tells figures that can be billed from those that can't: a server that says nonsense has said nothing.
func (u *figures) sound() bool {
	return u != nil && u.Prompt != nil && *u.Prompt >= 0 && u.Completion >= 0 && *u.Prompt <= limit.MaxAmount/2 && u.Completion <= limit.MaxAmount/2
}

func (u *figures) cached() int64 { return min(max(u.Details.Cached, 0), *u.Prompt) }

// chunk is what is read in an event of a stream, and in a whole answer.
type chunk struct {
	ID      json.RawMessage `json:"id"`
	Object  json.RawMessage `json:"object"`
	Created json.RawMessage `json:"created"`
	Model   json.RawMessage `json:"model"`
	Choices []choice        `json:"choices"`
	Usage   *figures        `json:"usage"`
}

type choice struct {
	Index        int     `json:"index"`
	Text         string  `json:"text"`
	Delta        message `json:"delta"`
	Message      message `json:"message"`
	FinishReason *string `json:"finish_reason"`
}

type message struct {
	Content   any    `json:"content"` // a string, or with some servers a list of parts
	Reasoning string `json:"reasoning_content"`
	Thinking  string `json:"reasoning"`
	Refusal   string `json:"refusal"`
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
		texts(m.Content, add)
		add(m.Reasoning)
		add(m.Thinking)
		add(m.Refusal)
		for _, t := range m.ToolCalls {
			add(t.Function.Name)
			add(t.Function.Arguments)
		}
		add(m.FunctionCall.Name)
		add(m.FunctionCall.Arguments)
	}
}

// texts finds the texts in content: itself, or those of its parts.
func texts(v any, add func(string)) {
	switch v := v.(type) {
	case string:
		add(v)
	case []any:
		for _, e := range v {
			if part, ok := e.(map[string]any); ok {
				texts(part["text"], add)
				texts(part["thinking"], add)
			}
		}
	}
}
