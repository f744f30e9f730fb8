package api

import (
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/tollgate-dev/tollgate/pkg/pgquota"
	"github.com/tollgate-dev/tollgate/pkg/problem"
)

// etag of a version.
func etag(version int64) string { return `"` + strconv.FormatInt(version, 10) + `"` }

// precondition reads If-Match and If-None-Match of a PUT (RFC 9110, section 13). A well-formed tag that no version can have matches
// nothing; a malformed header is an error, for a guard that was meant must not be passed over.
func precondition(h http.Header) (pgquota.Precondition, []problem.FieldError) {
	var p pgquota.Precondition
	var wrong []problem.FieldError
	if lines := h.Values("If-Match"); len(lines) > 0 {
		tags, any, err := entityTags(strings.Join(lines, ","))
		if err != nil {
			wrong = append(wrong, problem.FieldError{Field: "If-Match", Detail: err.Error()})
		}
		if p.Exists = any; !any {
			p.Versions = []int64{}
			for _, t := range tags {
				if v, ok := t.version(); ok && !t.weak { // If-Match compares strongly: a weak tag never matches
					p.Versions = append(p.Versions, v)
				}
			}
		}
	}
	if lines := h.Values("If-None-Match"); len(lines) > 0 {
		if strings.TrimSpace(strings.Join(lines, ",")) == "*" {
			p.Absent = true
		} else {
			wrong = append(wrong, problem.FieldError{Field: "If-None-Match", Detail: "only * is understood in a PUT: create, don't change"})
		}
	}
	return p, wrong
}

// notModified tells whether a GET's If-None-Match names the version.
func notModified(h http.Header, version int64) bool {
	lines := h.Values("If-None-Match")
	if len(lines) == 0 {
		return false
	}
	tags, any, err := entityTags(strings.Join(lines, ","))
	if err != nil {
		return false // a full answer is always right
	}
	for _, t := range tags {
		if v, ok := t.version(); ok && v == version {
			return true
		}
	}
	return any
}

type entityTag struct {
	opaque string
	weak   bool
}

// version of a tag that etag could have made.
func (t entityTag) version() (int64, bool) {
	v, err := strconv.ParseInt(t.opaque, 10, 64)
	return v, err == nil && strconv.FormatInt(v, 10) == t.opaque && v >= 0
}

// entityTags reads * or a list of entity tags.
func entityTags(s string) (tags []entityTag, any bool, err error) {
	s = strings.TrimSpace(s)
	if s == "*" {
		return nil, true, nil
	}
	bad := errors.New(`must be * or versions in double quotes, as in "7"`)
	for {
		s = strings.TrimLeft(s, " \t,")
		if s == "" {
			if tags == nil {
				return nil, false, bad
			}
			return tags, false, nil
		}
		rest, weak := strings.CutPrefix(s, "W/")
		if !strings.HasPrefix(rest, `"`) {
			return nil, false, bad
		}
		opaque, after, closed := strings.Cut(rest[1:], `"`)
		after = strings.TrimLeft(after, " \t")
		if !closed || strings.ContainsFunc(opaque, func(r rune) bool { return r <= ' ' || r == 0x7f }) || (after != "" && after[0] != ',') {
			return nil, false, bad
		}
		tags, s = append(tags, entityTag{opaque, weak}), after
	}
}
