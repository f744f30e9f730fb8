package proxy

import (
	"errors"
	"io"
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
			if err == nil && e.hasData() && strings.ContainsAny(string(e.data), "\r") {
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
