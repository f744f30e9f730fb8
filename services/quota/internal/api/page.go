package api

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/tollgate-dev/tollgate/pkg/problem"
	"github.com/tollgate-dev/tollgate/pkg/subject"
)

// Pages of a list.
const (
	defaultPage = 100
	maxPage     = 1000
)

// params are the parameters that a query may hold, each with what takes its value.
type params map[string]func(value string) error

// read gives every parameter of the query to whom it belongs, and names those that are wrong, in the order of their names.
func (ps params) read(q url.Values) []problem.FieldError {
	var wrong []problem.FieldError
	names := make([]string, 0, len(q))
	for name := range q {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		err := errors.New("is not a known parameter")
		switch take := ps[name]; {
		case take == nil:
		case len(q[name]) > 1:
			err = errors.New("is given twice")
		default:
			err = take(q.Get(name))
		}
		if err != nil {
			wrong = append(wrong, problem.FieldError{Field: cut(name), Detail: err.Error()})
		}
	}
	return wrong
}

func takeID(to *string) func(string) error {
	return func(v string) error { *to = v; return subject.ValidateID(v) }
}

// page is which part of a list is asked for.
type page struct {
	limit int
	after string // the last position of the page before; "": from the beginning
	list  string // what is listed, filters included: a cursor belongs to one list
}

// readPage reads limit and cursor, and the filters that the list knows. route names the list, with the caller's org, if it is bound to one.
func readPage(c echo.Context, filters params) (page, []problem.FieldError) {
	p := page{limit: defaultPage}
	var cursor *string
	all := params{
		"limit": func(v string) (err error) {
			if p.limit, err = strconv.Atoi(v); err != nil || p.limit < 1 || p.limit > maxPage {
				p.limit, err = defaultPage, errors.New("must be a whole number from 1 to 1000")
			}
			return err
		},
		"cursor": func(v string) error { cursor = &v; return nil },
	}
	for name, take := range filters {
		all[name] = take
	}
	q := c.QueryParams()
	wrong := all.read(q)
	parts := []string{c.Request().URL.EscapedPath(), string(within(c))}
	for name := range filters {
		parts = append(parts, name+"="+q.Get(name))
	}
	slices.Sort(parts[2:])
	p.list = strings.Join(parts, "\x00")
	if cursor != nil {
		after, ok := p.open(*cursor)
		if !ok {
			wrong = append(wrong, problem.FieldError{Field: "cursor", Detail: "must be the next_cursor of a page before, of the same list with the same filters"})
		}
		p.after = after
	}
	slices.SortStableFunc(wrong, func(a, b problem.FieldError) int { return strings.Compare(a.Field, b.Field) })
	return p, wrong
}

// sumLen is how many bytes of a checksum a cursor begins with. It finds cursors that were cut, changed or taken from another list; it is no
// secret, for a made-up position tells nothing that the list would not.
const sumLen = 8

func (p page) sum(position string) []byte {
	sum := sha256.Sum256([]byte(p.list + "\x00\x00" + position))
	return sum[:sumLen]
}

// cursor names a position in the list.
func (p page) cursor(position string) string {
	return base64.RawURLEncoding.EncodeToString(append(p.sum(position), position...))
}

func (p page) open(cursor string) (position string, ok bool) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	if err != nil || len(b) <= sumLen {
		return "", false
	}
	position = string(b[sumLen:])
	return position, string(p.sum(position)) == string(b[:sumLen])
}

// version reads a position that is a version.
func (p page) version() int64 {
	v, err := strconv.ParseInt(p.after, 10, 64)
	if err != nil {
		return 0 // the first page: any other cursor has a checksum
	}
	return v
}

// fill shows the items of a page, of which one more than limit was asked for: it tells whether there is a next page, and is not shown.
func fill[T, V any](p page, items []T, view func(T) V, position func(T) string) (views []V, next string) {
	if len(items) > p.limit {
		items = items[:p.limit]
		next = p.cursor(position(items[p.limit-1]))
	}
	views = make([]V, len(items))
	for i, item := range items {
		views[i] = view(item)
	}
	return views, next
}
