package proxy

import (
	"errors"
	"io"
	"reflect"
	"strconv"
	"strings"
	"testing"
)

func FuzzEventsKeepEveryByte(f *testing.F) {
	for _, s := range []string{"data: a\n\ndata: b\n\n", ": c\r\n\r\ndata:x\r\ndata: y\r\n\r\n", "event: e\ndata: {}\n\nrest", "\n\n\n", "data: a\rb\n\n", "\xef\xbb\xbfdata\r\rdata: x\r\n\r\n\n"} {
		f.Add(s, 1)
	}
	f.Fuzz(func(t *testing.T, s string, size int) {
		e := newEvents(&chunked{s, 1 + max(size, 0)%7})
		var out strings.Builder
		for {
			err := e.next()
			out.Write(e.raw)
			if err == nil && string(e.withData(e.data)) != string(e.raw) {
				t.Fatalf("%q with the same data became %q", e.raw, e.withData(e.data))
			}
			if err == nil && e.has && strings.ContainsAny(string(e.data), "\r") {
				t.Fatalf("%q: its data %q has a line's end", e.raw, e.data)
			}
			if err != nil {
				if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Fatal(err)
				}
				break
			}
		}
		if out.String() != s {
			t.Fatalf("%q became %q", s, out.String())
		}
	})
}

// read is what a stream's reader has read.
type read struct {
	Events [][2]string // whether there was data, and the data
	Raw    string
	Err    error
}

func readAll(in io.Reader) (r read) {
	e := newEvents(in)
	for r.Err == nil {
		r.Err = e.next()
		r.Raw += string(e.raw)
		if r.Err == nil {
			r.Events = append(r.Events, [2]string{strconv.FormatBool(e.has), string(e.data)})
		}
	}
	return r
}

// cut gives as many bytes at a time as each of sizes says, over and over.
type cut struct {
	s     string
	sizes []byte
	n     int
}

func (c *cut) Read(p []byte) (int, error) {
	if c.s == "" {
		return 0, io.EOF
	}
	n := 1
	if len(c.sizes) > 0 {
		n += int(c.sizes[c.n%len(c.sizes)])
		c.n++
	}
	n = copy(p[:min(len(p), n)], c.s)
	c.s = c.s[n:]
	return n, nil
}

// Where a network cuts a stream changes nothing of what is read in it. What is read is held against another reader of the standard's rules.
func FuzzSplitPointsChangeNothing(f *testing.F) {
	for _, s := range []string{"data: a\n\ndata: b\n\n", ": c\r\n\r\ndata:x\r\ndata: y\r\n\r\n", "data\rdata\r\rdata:\n\r\n", "\xef\xbb\xbfdata: 1\r\n\r\r\n\n", "a\r\n\r", "data: x\n\r\r\ndata: y"} {
		f.Add(s, []byte{0}, uint16(0))
		f.Add(s, []byte{2, 0, 1}, uint16(4094)) // a bufio.Reader's end is a cut, too
	}
	f.Fuzz(func(t *testing.T, s string, sizes []byte, before uint16) {
		s = strings.Repeat(":", int(before)) + s
		whole, pieces := readAll(strings.NewReader(s)), readAll(&cut{s: s, sizes: sizes})
		if !reflect.DeepEqual(whole, pieces) || whole.Raw != s {
			t.Fatalf("%q, cut at %v:\n%q, at once\n%q", s, sizes, pieces, whole)
		}
		if want := plainly(s); !reflect.DeepEqual(whole.Events, want) {
			t.Fatalf("%q was read as %q, want %q", s, whole.Events, want)
		}
	})
}

// plainly reads events by the standard's rules, of a text that is all there.
func plainly(s string) (out [][2]string) {
	s = strings.TrimPrefix(s, "\xef\xbb\xbf")
	s = strings.ReplaceAll(strings.ReplaceAll(s, "\r\n", "\n"), "\r", "\n")
	lines := strings.Split(s, "\n")
	var data []string
	for _, l := range lines[:len(lines)-1] { // the last one has no end
		name, value, _ := strings.Cut(l, ":")
		switch {
		case l == "":
			out = append(out, [2]string{strconv.FormatBool(data != nil), strings.Join(data, "\n")})
			data = nil
		case name == "data":
			data = append(data, strings.TrimPrefix(value, " "))
		}
	}
	return out
}

func TestAnEventsMemoryIsBounded(t *testing.T) {
	for name, text := range map[string]string{
		"one line":                strings.Repeat("x", maxEvent+1),
		"one data line":           "data:" + strings.Repeat("x", maxEvent),
		"empty data lines":        strings.Repeat("data\n", maxLines+1),
		"comments":                strings.Repeat(":\r", maxLines+1),
		"comments, ended by CRLF": strings.Repeat(":\r\n", maxLines+1),
	} {
		e := newEvents(io.MultiReader(strings.NewReader("data: a\n\n"+text), neverEnding{}))
		if err := e.next(); err != nil || string(e.data) != "a" {
			t.Fatal(name, err)
		}
		if err := e.next(); !errors.Is(err, errEventTooLong) || len(e.raw) > maxEvent || len(e.lines) > maxLines {
			t.Errorf("%s: %v after %d bytes, %d lines", name, err, len(e.raw), len(e.lines))
		}
	}
	e := newEvents(strings.NewReader(strings.Repeat(":\n", maxLines) + "\ndata: b\n\n"))
	if err := errors.Join(e.next(), e.next()); err != nil || string(e.data) != "b" {
		t.Errorf("as many lines as there may be: %v, %q", err, e.data)
	}
}

type neverEnding struct{}

func (neverEnding) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

// chunked gives a few bytes at a time.
type chunked struct {
	s string
	n int
}

func (c *chunked) Read(p []byte) (int, error) {
	if c.s == "" {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), c.n)], c.s)
	c.s = c.s[n:]
	return n, nil
}
