package body

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/subject"
)

// Request is what Tollgate reads in a body, and the body. The zero value of what was left out.
type Request struct {
	Text []byte // as it came; never written to

	Model        string
	Stream       bool
	MaxTokens    *int64 // of max_completion_tokens and max_tokens the greater one: which of them counts, servers differ on
	Choices      int64  // answers for each prompt: n or best_of, whichever is more; 1 at least
	IncludeUsage bool   // the client wants the usage of its stream

	model        Span
	options      Span // of stream_options; empty if there are none
	optionsKind  jsontext.Kind
	includeUsage Span // within Text; empty if there is none
	emptyOptions bool
	edits        []edit
}

// FieldError says what is wrong with which field.
type FieldError struct{ Field, Detail string }

func (e *FieldError) Error() string { return e.Field + ": " + e.Detail }

// acted are the fields that Tollgate acts on.
var acted = []string{"model", "stream", "stream_options", "max_tokens", "max_completion_tokens", "n", "best_of", "messages", "prompt", "input"}

// Parse reads a body. Errors: *FieldError; what is wrong with the JSON.
func Parse(text []byte) (*Request, error) {
	r := &Request{Text: text, Choices: 1}
	var once names
	err := Members(text, func(name string, kind jsontext.Kind, v Span) error {
		if err := once.see("", name, acted); err != nil {
			return err
		}
		return r.field(name, kind, v)
	})
	if err != nil {
		return nil, err
	}
	if r.Model == "" {
		return nil, &FieldError{"model", "is required"}
	}
	return r, nil
}

// names refuses a field that was seen before, and one that differs from a known field in case.
type names []string

func (n *names) see(in, name string, known []string) error {
	for _, k := range known {
		if !strings.EqualFold(name, k) {
			continue
		}
		if name != k {
			return &FieldError{in + k, "is written " + strconv.Quote(name) + "; servers differ on whether that is the same field"}
		}
		if slices.Contains(*n, name) {
			return &FieldError{in + k, "is given twice; servers differ on which one counts"}
		}
		*n = append(*n, name)
	}
	return nil
}

func (r *Request) field(name string, kind jsontext.Kind, v Span) error {
	raw := v.Of(r.Text)
	switch name {
	case "model":
		if kind != '"' {
			return &FieldError{name, "must be a string"}
		}
		m, err := jsontext.AppendUnquote(nil, raw)
		if err != nil {
			return &FieldError{name, err.Error()}
		}
		if err := subject.ValidateID(string(m)); err != nil {
			return &FieldError{name, err.Error()}
		}
		r.Model, r.model = string(m), v
	case "stream":
		switch kind {
		case 't':
			r.Stream = true
		case 'f', 'n':
		default:
			return &FieldError{name, "must be true or false"}
		}
	case "stream_options":
		return r.streamOptions(kind, v)
	case "max_tokens", "max_completion_tokens":
		n, err := count(name, kind, raw, 0)
		if n != nil && (r.MaxTokens == nil || *n > *r.MaxTokens) {
			r.MaxTokens = n
		}
		return err
	case "n", "best_of":
		n, err := count(name, kind, raw, 1)
		if n != nil {
			r.Choices = max(r.Choices, *n)
		}
		return err
	}
	return nil
}

func (r *Request) streamOptions(kind jsontext.Kind, v Span) error {
	r.options, r.optionsKind = v, kind
	switch kind {
	case 'n':
		return nil
	case '{':
	default:
		return &FieldError{"stream_options", "must be an object"}
	}
	r.emptyOptions = true
	var once names
	return Members(v.Of(r.Text), func(name string, kind jsontext.Kind, in Span) error {
		r.emptyOptions = false
		if err := once.see("stream_options.", name, []string{"include_usage"}); err != nil {
			return err
		}
		if name != "include_usage" {
			return nil
		}
		r.includeUsage = Span{v.Start + in.Start, v.Start + in.End}
		switch kind {
		case 't':
			r.IncludeUsage = true
		case 'f', 'n':
		default:
			return &FieldError{"stream_options.include_usage", "must be true or false"}
		}
		return nil
	})
}

// count reads a number of tokens or choices; null is nil.
func count(field string, kind jsontext.Kind, raw []byte, least int64) (*int64, error) {
	if kind == 'n' {
		return nil, nil //nolint:nilnil // null is as good as left out
	}
	n, err := strconv.ParseInt(string(raw), 10, 64)
	if kind != '0' || err != nil || n < least || n > limit.MaxAmount {
		return nil, &FieldError{field, fmt.Sprintf("must be a whole number from %d to %d", least, limit.MaxAmount)}
	}
	return &n, nil
}

type edit struct {
	at   Span
	with string
}

// SetModel has another model be asked for.
func (r *Request) SetModel(name string) {
	r.edits = append(r.edits, edit{r.model, `"` + name + `"`}) // an id needs no escapes
}

// AskForUsage has a stream end with its usage, and keeps every other stream option.
func (r *Request) AskForUsage() {
	const ask = `"include_usage":true`
	switch {
	case !r.Stream || r.IncludeUsage:
	case r.includeUsage.End > 0:
		r.edits = append(r.edits, edit{r.includeUsage, "true"})
	case r.optionsKind == 'n':
		r.edits = append(r.edits, edit{r.options, "{" + ask + "}"})
	case r.optionsKind == '{' && r.emptyOptions:
		r.edits = append(r.edits, edit{Span{r.options.Start + 1, r.options.Start + 1}, ask})
	case r.optionsKind == '{':
		r.edits = append(r.edits, edit{Span{r.options.Start + 1, r.options.Start + 1}, ask + ","})
	default:
		begin := bytes.IndexByte(r.Text, '{') + 1
		r.edits = append(r.edits, edit{Span{begin, begin}, `"stream_options":{` + ask + `},`}) // a model follows at least
	}
}

// Drop lets go of the body. What was read of it stays; it can't be opened any more, but readers of it go on.
func (r *Request) Drop() { r.Text, r.edits = nil, nil }

// Open gives the edited body and its length. It may be called again, for a body that has to be sent again.
func (r *Request) Open() (io.Reader, int64) {
	edits := slices.Clone(r.edits)
	slices.SortFunc(edits, func(a, b edit) int { return a.at.Start - b.at.Start })
	var parts []io.Reader
	at, length := 0, int64(len(r.Text))
	for _, e := range edits {
		parts = append(parts, bytes.NewReader(r.Text[at:e.at.Start]), strings.NewReader(e.with))
		at = e.at.End
		length += int64(len(e.with) - (e.at.End - e.at.Start))
	}
	return io.MultiReader(append(parts, bytes.NewReader(r.Text[at:]))...), length
}
