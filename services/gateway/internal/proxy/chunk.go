package proxy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/tollgate-dev/tollgate/services/gateway/internal/body"
)

// chunk is what is read in an event of a stream, and in a whole answer, in one pass that keeps nothing else: a server can't make it hold more than some
// three times the bytes that it sends. A field of an unexpected type is left out, and is the client's to understand.
type chunk struct {
	ID, Object, Created, Model json.RawMessage // as they came

	Choices int      // how many there are
	Said    []choice // the first of them, and all others that said something or ended
	Usage   bool     // there is some that is not null

	text []byte // of all of Said
}

// choice is what one answer said.
type choice struct {
	Index    int
	Finished bool
	from, to int // its text in the chunk's
}

// of gives what a choice said.
func (c *chunk) of(ch choice) string { return string(c.text[ch.from:ch.to]) }

// read reads what data has of a chunk. Error: data is no JSON.
func (c *chunk) read(data []byte) error {
	dec, done := body.Decoder(data)
	defer done()
	err := members(dec, func(name []byte) error {
		switch string(name) {
		case "id":
			return raw(dec, &c.ID)
		case "object":
			return raw(dec, &c.Object)
		case "created":
			return raw(dec, &c.Created)
		case "model":
			return raw(dec, &c.Model)
		case "choices":
			return elements(dec, func() error { return c.choice(dec) })
		case "usage":
			c.Usage = c.Usage || dec.PeekKind() != 'n'
		}
		return dec.SkipValue()
	})
	if err != nil {
		return err
	}
	if _, err = dec.ReadToken(); errors.Is(err, io.EOF) {
		return nil
	}
	return fmt.Errorf("something comes after the JSON: %w", err)
}

// members calls f with the name of each member of an object; f has to read its value. What is no object is skipped.
func members(dec *jsontext.Decoder, f func(name []byte) error) error {
	if dec.PeekKind() != '{' {
		return dec.SkipValue()
	}
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	for dec.PeekKind() != '}' {
		name, err := dec.ReadValue()
		if err != nil {
			return err
		}
		if bytes.IndexByte(name, '\\') >= 0 {
			name, _ = jsontext.AppendUnquote(nil, name) // what it can't be is replaced
		} else {
			name = name[1 : len(name)-1]
		}
		if err := f(name); err != nil {
			return err
		}
	}
	_, err := dec.ReadToken()
	return err
}

// elements calls f for each element of an array; f has to read it. What is no array is skipped.
func elements(dec *jsontext.Decoder, f func() error) error {
	if dec.PeekKind() != '[' {
		return dec.SkipValue()
	}
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	for dec.PeekKind() != ']' {
		if err := f(); err != nil {
			return err
		}
	}
	_, err := dec.ReadToken()
	return err
}

func raw(dec *jsontext.Decoder, into *json.RawMessage) error {
	v, err := dec.ReadValue()
	*into = append((*into)[:0], v...)
	return err
}

func (c *chunk) choice(dec *jsontext.Decoder) error {
	ch := choice{from: len(c.text)}
	err := members(dec, func(name []byte) error {
		switch string(name) {
		case "index":
			v, err := dec.ReadValue()
			if n, wrong := strconv.Atoi(string(v)); wrong == nil {
				ch.Index = n
			}
			return err
		case "finish_reason":
			ch.Finished = dec.PeekKind() == '"'
		case "text":
			return c.word(dec)
		case "delta", "message":
			return members(dec, func(name []byte) error { return c.message(dec, name) })
		}
		return dec.SkipValue()
	})
	ch.to = len(c.text)
	if c.Choices++; c.Choices == 1 || ch.to > ch.from || ch.Finished {
		c.Said = append(c.Said, ch)
	}
	return err
}

// message reads a member of what a choice says.
func (c *chunk) message(dec *jsontext.Decoder, name []byte) error {
	switch string(name) {
	case "content", "reasoning_content", "reasoning", "refusal",
		"audio": // its transcript; how many tokens the sound was nobody knows
		return c.words(dec)
	case "tool_calls":
		return elements(dec, func() error {
			return members(dec, func(name []byte) error {
				if string(name) == "function" {
					return c.called(dec)
				}
				return dec.SkipValue()
			})
		})
	case "function_call":
		return c.called(dec)
	}
	return dec.SkipValue()
}

func (c *chunk) called(dec *jsontext.Decoder) error {
	return members(dec, func(name []byte) error {
		if n := string(name); n == "name" || n == "arguments" {
			return c.word(dec)
		}
		return dec.SkipValue()
	})
}

// word takes a text that is a string.
func (c *chunk) word(dec *jsontext.Decoder) error {
	if dec.PeekKind() != '"' {
		return dec.SkipValue()
	}
	v, err := dec.ReadValue()
	if err == nil {
		c.text, _ = jsontext.AppendUnquote(c.text, v) // what is no UTF-8 is replaced
	}
	return err
}

// words takes a text that is a string, or with some servers an object or a list of parts.
func (c *chunk) words(dec *jsontext.Decoder) error {
	switch dec.PeekKind() {
	case '[':
		return elements(dec, func() error {
			if dec.PeekKind() != '{' {
				return dec.SkipValue()
			}
			return c.words(dec)
		})
	case '{':
		return members(dec, func(name []byte) error {
			switch string(name) {
			case "text", "content", "thinking", "reasoning", "summary", "refusal", "transcript":
				return c.words(dec)
			}
			return dec.SkipValue()
		})
	}
	return c.word(dec)
}
