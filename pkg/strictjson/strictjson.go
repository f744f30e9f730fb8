// Package strictjson decodes request bodies without forgiveness: unknown fields, repeated fields, nulls, wrong types, fractions,
// a wrong case and trailing data are all errors that name the field. encoding/json lets several of these pass, and a quota that
// silently kept its old value, or a token count that silently became 0, is a billing fault.
package strictjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"reflect"
	"strings"
	"sync"

	"github.com/tollgate-dev/tollgate/pkg/problem"
)

// MaxBody is the largest request body in bytes (DESIGN §4).
const MaxBody = 1 << 20

// An answer to a bad body is not as long as the body: so many faults are named, and so much is quoted of each.
const (
	maxFaults = 20
	maxQuoted = 64
)

// short cuts what the caller wrote, on a character's border.
func short(s string) string {
	if len(s) <= maxQuoted {
		return s
	}
	return strings.ToValidUTF8(s[:maxQuoted], "") + "…"
}

// Read decodes the body of r into the struct that dst points to. Errors are *problem.Problem: 413 for a body over MaxBody, 415 for
// another media type, 400 with every wrong field otherwise.
func Read(r *http.Request, dst any) error {
	if ct := r.Header.Get("Content-Type"); ct != "" {
		if mt, _, err := mime.ParseMediaType(ct); err != nil || mt != "application/json" {
			return problem.New(http.StatusUnsupportedMediaType, problem.CodeUnsupportedMedia, "Send the body as application/json.")
		}
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, MaxBody+1))
	if err != nil {
		return problem.New(http.StatusBadRequest, problem.CodeMalformedJSON, "The body could not be read.").Because(err)
	}
	if len(body) > MaxBody {
		return problem.New(http.StatusRequestEntityTooLarge, problem.CodeBodyTooLarge, fmt.Sprintf("The body is over %d bytes.", MaxBody))
	}
	return Decode(body, dst)
}

// Decode is Read for bytes. dst points to a struct; its exported fields' json tags are the only names allowed.
func Decode(body []byte, dst any) error {
	raw, fields, err := object(body)
	if err != nil {
		return malformed(err)
	}
	wrong, err := decode(raw, fields, "", reflect.ValueOf(dst).Elem())
	if err != nil {
		return malformed(err)
	}
	if len(wrong) > 0 {
		return problem.Invalid(wrong...)
	}
	return nil
}

// decode fills the struct v, embedded ones included, with the members of an object. prefix names the object in faults: "limits[0]." say.
func decode(raw map[string]json.RawMessage, fields []string, prefix string, v reflect.Value) ([]problem.FieldError, error) {
	fieldsOf := knownFields(v.Type())
	var wrong []problem.FieldError
	seen := map[string]bool{}
	for _, name := range fields {
		if len(wrong) >= maxFaults {
			break
		}
		bad := func(name, detail string) {
			wrong = append(wrong, problem.FieldError{Field: prefix + name, Detail: detail})
		}
		index, ok := fieldsOf[name]
		switch {
		case !ok:
			bad(short(name), "is not a known field")
		case seen[name]:
			bad(name, "is given twice")
		case bytes.Equal(raw[name], []byte("null")):
			bad(name, "must not be null; leave the field out instead")
		default:
			more, err := value(raw[name], prefix+name, v.FieldByIndex(index))
			if err != nil {
				return nil, err
			}
			wrong = append(wrong, more...)
		}
		seen[name] = true
	}
	return wrong, nil
}

var known sync.Map // a struct's type to its fields' indexes by name

// knownFields gives the fields of a struct by their names. To find them takes longer than to read a small body.
func knownFields(t reflect.Type) map[string][]int {
	if m, ok := known.Load(t); ok {
		return m.(map[string][]int) //nolint:forcetypeassert,errcheck // nothing else is stored
	}
	m := map[string][]int{}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name != "" && name != "-" {
			m[name] = f.Index
		}
	}
	known.Store(t, m)
	return m
}

// value fills one field. The objects of a list are decoded as strictly as the whole.
func value(raw json.RawMessage, field string, v reflect.Value) ([]problem.FieldError, error) {
	list := v.Type()
	if list.Kind() == reflect.Pointer {
		list = list.Elem()
	}
	if list.Kind() != reflect.Slice || list.Elem().Kind() != reflect.Struct {
		if err := json.Unmarshal(raw, v.Addr().Interface()); err != nil {
			return []problem.FieldError{{Field: field, Detail: typeError(err, v.Type())}}, nil
		}
		return nil, nil
	}
	var items []json.RawMessage
	if json.Unmarshal(raw, &items) != nil {
		return []problem.FieldError{{Field: field, Detail: "must be a list of objects"}}, nil //nolint:nilerr // told as the field's fault
	}
	out := reflect.MakeSlice(list, len(items), len(items))
	var wrong []problem.FieldError
	for i, item := range items {
		if len(wrong) >= maxFaults {
			break
		}
		at := fmt.Sprintf("%s[%d]", field, i)
		if len(item) == 0 || item[0] != '{' {
			wrong = append(wrong, problem.FieldError{Field: at, Detail: "must be an object"})
			continue
		}
		members, names, err := object(item)
		if err != nil {
			return nil, err
		}
		more, err := decode(members, names, at+".", out.Index(i))
		if err != nil {
			return nil, err
		}
		wrong = append(wrong, more...)
	}
	if v.Kind() == reflect.Pointer {
		p := reflect.New(list)
		p.Elem().Set(out)
		out = p
	}
	v.Set(out)
	return wrong, nil
}

// object splits a JSON object into its members, keeping their order and repeats.
func object(body []byte) (map[string]json.RawMessage, []string, error) {
	dec := json.NewDecoder(bytes.NewReader(body))
	tok, err := dec.Token()
	if err != nil {
		return nil, nil, err
	}
	if tok != json.Delim('{') {
		return nil, nil, errors.New("the body must be a JSON object")
	}
	raw, names := map[string]json.RawMessage{}, []string{}
	for dec.More() {
		tok, err := dec.Token()
		if err != nil {
			return nil, nil, after(names, err)
		}
		name, _ := tok.(string) // a decoder gives only strings here
		var m json.RawMessage
		if err := dec.Decode(&m); err != nil {
			return nil, nil, &syntaxError{name, err}
		}
		if _, twice := raw[name]; !twice {
			raw[name] = m
		}
		names = append(names, name)
	}
	if _, err := dec.Token(); err != nil {
		return nil, nil, after(names, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, nil, errors.New("there is data after the JSON object")
	}
	return raw, names, nil
}

// syntaxError is a fault of syntax in a member or behind it.
type syntaxError struct {
	field string
	err   error
}

func (e *syntaxError) Error() string { return fmt.Sprintf("field %q: %v", e.field, e.err) }
func (e *syntaxError) Unwrap() error { return e.err }

// after tells where a fault lies by the last of the members read before it.
func after(names []string, err error) error {
	if len(names) == 0 {
		return err
	}
	return &syntaxError{names[len(names)-1], err}
}

func malformed(err error) error {
	detail := "The body is not valid JSON."
	var se *syntaxError
	switch {
	case errors.As(err, &se):
		detail = fmt.Sprintf("The body is not valid JSON, at or after the field %q.", short(se.field))
	case errors.Is(err, io.EOF):
		detail = "The body is empty; a JSON object is wanted."
	case strings.HasPrefix(err.Error(), "the ") || strings.HasPrefix(err.Error(), "there "):
		detail = strings.ToUpper(err.Error()[:1]) + err.Error()[1:] + "."
	}
	return problem.New(http.StatusBadRequest, problem.CodeMalformedJSON, detail).Because(err)
}

func typeError(err error, want reflect.Type) string {
	for want.Kind() == reflect.Pointer {
		want = want.Elem()
	}
	name := map[reflect.Kind]string{reflect.Int64: "a whole number", reflect.Int: "a whole number", reflect.String: "a string",
		reflect.Bool: "true or false", reflect.Slice: "a list", reflect.Struct: "an object"}[want.Kind()]
	var te *json.UnmarshalTypeError
	if errors.As(err, &te) {
		got := te.Value
		if name == "a whole number" && strings.HasPrefix(got, "number ") {
			return fmt.Sprintf("must be a whole number that fits 64 bits, is %s", short(strings.TrimPrefix(got, "number ")))
		}
		if te.Field != "" || want.Kind() == reflect.Slice {
			return fmt.Sprintf("holds a %s where another type is wanted", got)
		}
		return fmt.Sprintf("must be %s, is a %s", name, got)
	}
	return short(err.Error())
}
