package trace

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/usage"
)

// The columns that must be there, in any order and among any others. They are those of the Azure LLM inference traces.
const (
	colTimestamp = "TIMESTAMP"
	colContext   = "ContextTokens"
	colGenerated = "GeneratedTokens"
)

// Request is one line of a trace. Offset is its time since the first line, never negative.
type Request struct {
	Offset       time.Duration
	InputTokens  int64
	OutputTokens int64
}

var timeLayouts = []string{"2006-01-02 15:04:05.999999999", time.RFC3339Nano, "2006-01-02T15:04:05.999999999"}

// Read reads a whole trace, or its first limit requests if limit is over 0. An error names the line and the column.
func Read(r io.Reader, limit int) ([]Request, error) {
	cr := csv.NewReader(r)
	cr.ReuseRecord = true
	header, err := cr.Read()
	if errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("line 1: the file is empty; the header %s,%s,%s is wanted", colTimestamp, colContext, colGenerated)
	}
	if err != nil {
		return nil, csvError(err)
	}
	cols, err := columns(header)
	if err != nil {
		return nil, err
	}
	var out []Request
	var first time.Time
	for limit <= 0 || len(out) < limit {
		fields, err := cr.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, csvError(err)
		}
		line, _ := cr.FieldPos(0)
		at, err := parseTime(fields[cols[0]])
		if err != nil {
			return nil, fmt.Errorf("line %d, column %s: %w", line, colTimestamp, err)
		}
		req := Request{}
		if req.InputTokens, err = parseTokens(fields[cols[1]]); err != nil {
			return nil, fmt.Errorf("line %d, column %s: %w", line, colContext, err)
		}
		if req.OutputTokens, err = parseTokens(fields[cols[2]]); err != nil {
			return nil, fmt.Errorf("line %d, column %s: %w", line, colGenerated, err)
		}
		if len(out) == 0 {
			first = at
		}
		req.Offset = max(at.Sub(first), 0)
		out = append(out, req)
	}
	if len(out) == 0 {
		return nil, errors.New("line 2: the trace has a header but no request")
	}
	return out, nil
}

func columns(header []string) ([3]int, error) {
	want := [3]string{colTimestamp, colContext, colGenerated}
	got := [3]int{-1, -1, -1}
	for i, name := range header {
		name = strings.TrimSpace(strings.TrimPrefix(name, "\ufeff"))
		for j, w := range want {
			if !strings.EqualFold(name, w) {
				continue
			}
			if got[j] >= 0 {
				return got, fmt.Errorf("line 1: column %s is there twice", w)
			}
			got[j] = i
		}
	}
	for j, w := range want {
		if got[j] < 0 {
			return got, fmt.Errorf("line 1: column %s is missing; the header is %q", w, strings.Join(header, ","))
		}
	}
	return got, nil
}

func parseTime(s string) (time.Time, error) {
	s = strings.TrimSpace(s)
	for _, layout := range timeLayouts {
		if t, err := time.Parse(layout, s); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is not a time like 2023-11-16 18:15:46.68 or RFC 3339", s)
}

func parseTokens(s string) (int64, error) {
	n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
	if err != nil || n < 0 || n > usage.MaxTokens {
		return 0, fmt.Errorf("%q is not a whole number from 0 to %d", s, usage.MaxTokens)
	}
	return n, nil
}

func csvError(err error) error {
	var pe *csv.ParseError
	if errors.As(err, &pe) {
		return fmt.Errorf("line %d: %w", pe.Line, pe.Err)
	}
	return err
}
