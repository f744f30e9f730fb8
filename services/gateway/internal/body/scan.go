package body

import (
	"bytes"
	"errors"
	"fmt"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
)

// Span is a place in a text: the bytes from Start to before End.
type Span struct{ Start, End int }

// Of gives the bytes of s.
func (s Span) Of(text []byte) []byte { return text[s.Start:s.End] }

// ErrNotAnObject says that a text is JSON but no object.
var ErrNotAnObject = errors.New("must be a JSON object")

var decoders = sync.Pool{New: func() any { return new(jsontext.Decoder) }}

// Decoder gives a decoder of text, which is read where it lies; names in it may repeat, and be any bytes. It is good until done is called. They are
// used again: a body may hold millions of objects.
func Decoder(text []byte) (dec *jsontext.Decoder, done func()) {
	dec = decoders.Get().(*jsontext.Decoder) //nolint:errcheck,forcetypeassert // nothing else is put there
	dec.Reset(bytes.NewBuffer(text), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	return dec, func() {
		dec.Reset(bytes.NewReader(nil)) // so that it does not keep text
		decoders.Put(dec)
	}
}

// Members calls f with the name and the place of each member's value of the object that text is, in order, and checks that all of text is
// valid JSON. Text in names and values may be any bytes; nesting is bounded (10,000).
func Members(text []byte, f func(name string, kind jsontext.Kind, value Span) error) error {
	dec, done := Decoder(text)
	defer done()
	tok, err := dec.ReadToken()
	if err != nil {
		return err
	}
	if tok.Kind() != '{' {
		return ErrNotAnObject
	}
	for dec.PeekKind() != '}' {
		tok, err := dec.ReadToken()
		if err != nil {
			return err
		}
		name := tok.String()
		kind := dec.PeekKind()
		value, err := dec.ReadValue()
		if err != nil {
			return err
		}
		end := int(dec.InputOffset())
		if err := f(name, kind, Span{end - len(value), end}); err != nil {
			return err
		}
	}
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	if rest := bytes.TrimLeft(text[dec.InputOffset():], " \t\r\n"); len(rest) > 0 {
		return fmt.Errorf("has %d bytes after the JSON object", len(rest))
	}
	return nil
}
