package tokens

import (
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/tollgate-dev/tollgate/services/gateway/internal/body"
)

// Kind is the endpoint that a body is for.
type Kind int

// The endpoints that are metered.
const (
	Chat       Kind = iota // /v1/chat/completions
	Completion             // /v1/completions
	Embedding              // /v1/embeddings
)

// Tokens that are counted besides text, by the package's rules.
const (
	perMessage  = 3
	perName     = 1
	perAnswer   = 3
	perToolCall = 3
	perTool     = 8
)

// Counted is what a body asks a model to read.
type Counted struct {
	Tokens    int64
	Estimated bool  // it was too long to be counted exactly
	Prompts   int64 // how many are answered, each by body.Request.Choices; 1 at least
}

// Count counts the input of a body. Errors are those of body.Members, or *body.FieldError where what is to be counted has no shape that a server
// could read. It panics on no body, and takes time in proportion to its length.
func (c *Counter) Count(kind Kind, model string, text []byte) (Counted, error) {
	p := &prompt{prompts: 1}
	err := body.Members(text, func(name string, kind_ jsontext.Kind, at body.Span) error {
		v := value{name, kind_, at.Of(text)}
		switch {
		case kind == Chat && name == "messages":
			return p.messages(v)
		case kind == Chat && (name == "tools" || name == "functions"):
			return p.tools(v)
		case kind == Chat && name == "response_format":
			return p.json(v)
		case kind == Completion && name == "prompt", kind == Embedding && name == "input":
			return p.inputs(v)
		case kind == Completion && name == "suffix":
			return p.strings(v, p.text)
		}
		return nil
	})
	if err != nil {
		return Counted{}, err
	}
	if !p.found {
		return Counted{}, &body.FieldError{Field: [...]string{"messages", "prompt", "input"}[kind], Detail: "is required"}
	}
	n, estimated := c.texts(model, p.texts)
	return Counted{Tokens: n + p.fixed, Estimated: estimated, Prompts: max(1, p.prompts)}, nil
}

// value is one JSON value, and the field to blame if it is wrong.
type value struct {
	field string
	kind  jsontext.Kind
	raw   []byte
}

func (v value) wrong(detail string) error { return &body.FieldError{Field: v.field, Detail: detail} }

// elements calls f with each element of an array.
func (v value) elements(f func(value) error) error {
	dec, done := body.Decoder(v.raw)
	defer done()
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	for dec.PeekKind() != ']' {
		kind := dec.PeekKind()
		raw, err := dec.ReadValue()
		if err != nil {
			return err
		}
		if err := f(value{v.field, kind, raw}); err != nil { // raw is good until the next read
			return err
		}
	}
	return nil
}

// members calls f with each member of an object. Its field is the member's own name.
func (v value) members(f func(value) error) error {
	return body.Members(v.raw, func(name string, kind jsontext.Kind, at body.Span) error {
		return f(value{name, kind, at.Of(v.raw)})
	})
}

// unquote gives a string's text. What is no valid JSON string is counted as it stands.
func (v value) unquote() string {
	text, err := jsontext.AppendUnquote(nil, v.raw)
	if err != nil && len(text) == 0 {
		return string(v.raw)
	}
	return string(text)
}

// prompt collects what is to be counted.
type prompt struct {
	found   bool
	texts   []string
	fixed   int64 // tokens that are no text's
	prompts int64
	images  int
}

func (p *prompt) text(s string) {
	if s != "" {
		p.texts = append(p.texts, s)
	}
}

// strings gives every string in a value, at any depth, in one pass.
func (p *prompt) strings(v value, f func(string)) error {
	if v.kind == '"' {
		f(v.unquote())
		return nil
	}
	if v.kind != '{' && v.kind != '[' {
		return nil
	}
	dec, done := body.Decoder(v.raw)
	defer done()
	for depth := 0; ; {
		// A name is a string too: of an object, the even ones.
		parent, n := dec.StackIndex(dec.StackDepth())
		name := parent == '{' && n%2 == 0
		tok, err := dec.ReadToken()
		if err != nil {
			return err
		}
		switch tok.Kind() {
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return nil
			}
		case '"':
			if !name {
				f(tok.String())
			}
		}
	}
}

// json counts an object or array as its compact JSON; anything else not at all.
func (p *prompt) json(v value) error {
	if v.kind != '{' && v.kind != '[' {
		return nil
	}
	compact := jsontext.Value(slices.Clone(v.raw))
	if err := compact.Compact(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)); err != nil {
		return err
	}
	p.text(string(compact))
	return nil
}

func (p *prompt) tools(v value) error {
	if v.kind != '[' {
		return p.json(v)
	}
	return v.elements(func(tool value) error {
		p.fixed += perTool
		return p.json(tool)
	})
}

func (p *prompt) messages(v value) error {
	if v.kind != '[' {
		return v.wrong("must be an array")
	}
	if !p.found {
		p.fixed += perAnswer
	}
	p.found = true
	return v.elements(func(m value) error {
		if m.kind != '{' {
			return v.wrong("must hold objects")
		}
		p.fixed += perMessage
		return m.members(p.messageField)
	})
}

func (p *prompt) messageField(v value) error {
	switch v.field {
	case "content":
		if v.kind == '[' {
			return v.elements(p.part)
		}
	case "name":
		p.fixed += perName
	case "tool_calls":
		if v.kind == '[' {
			return v.elements(func(call value) error {
				p.fixed += perToolCall
				return p.strings(call, p.text)
			})
		}
	case "function_call":
		p.fixed += perToolCall
	}
	return p.strings(v, p.text)
}

// part is one of a message's: text, an image, audio, a file, or something newer.
func (p *prompt) part(v value) error {
	if v.kind != '{' {
		return p.strings(v, p.text)
	}
	return v.members(func(m value) error {
		switch m.field {
		case "type":
			return nil
		case "text":
			return p.strings(m, p.text)
		case "image_url", "image":
			return p.image(m)
		case "input_audio", "audio":
			return p.audio(m)
		case "file":
			return p.file(m)
		}
		return p.strings(m, p.textOrBlob)
	})
}

// inputs are a string, an array of strings, of token ids, or of arrays of token ids.
func (p *prompt) inputs(v value) error {
	p.found = true
	shape := v.wrong("must be a string, or an array of strings, of token ids, or of arrays of token ids")
	if v.kind == '"' {
		p.text(v.unquote())
		return nil
	}
	if v.kind != '[' {
		return shape
	}
	ids := false
	p.prompts = 0
	err := v.elements(func(e value) error {
		switch e.kind {
		case '"':
			p.prompts++
			p.text(e.unquote())
		case '0':
			p.fixed++
			ids = true
		case '[':
			p.prompts++
			return e.elements(func(id value) error {
				if id.kind != '0' {
					return shape
				}
				p.fixed++
				return nil
			})
		default:
			return shape
		}
		return nil
	})
	if ids {
		p.prompts++
	}
	return err
}

// blob gives the base64 of a data URL.
func blob(s string) (data string, ok bool) {
	rest, ok := strings.CutPrefix(s, "data:")
	if !ok {
		return "", false
	}
	media, data, ok := strings.Cut(rest, ",")
	return data, ok && strings.HasSuffix(media, ";base64")
}
