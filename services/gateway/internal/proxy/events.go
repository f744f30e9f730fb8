package proxy

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// What an event of a stream may have: bytes, and lines, of which each takes some 30 bytes here.
const (
	maxEvent = 8 << 20
	maxLines = 16 << 10
)

var errEventTooLong = errors.New("an event of the stream is larger than 8 MiB, or has more than 16,384 lines")

// events reads a stream of server-sent events, and keeps their bytes. Lines end in LF, CRLF or CR, as the standard has it.
type events struct {
	in    *bufio.Reader
	raw   []byte // of the event, reused
	data  []byte // of its data lines, joined by LF; reused
	lines []line // of raw, without the one that ends the event; reused
	has   bool   // a data line

	begun bool // the stream's first bytes were looked at: they may be a byte order mark
	cr    bool // the last line ended in CR, and what follows has not been looked at: an LF belongs to it
	crlf  bool // so far lines that end in CR go on with LF
}

// line is one of an event.
type line struct {
	from, to int // in raw, its end excluded
	next     int // where the next one begins
	value    int // where in raw the value of a data line begins; -1: it is another line
}

func newEvents(r io.Reader) *events { return &events{in: bufio.NewReaderSize(r, 4<<10)} }

var byteOrderMark = []byte("\xef\xbb\xbf")

// next reads up to the blank line that ends an event, or to the end: io.EOF if nothing is left, io.ErrUnexpectedEOF if the last event is not whole.
func (e *events) next() error {
	e.raw, e.data, e.lines, e.has = e.raw[:0], e.data[:0], e.lines[:0], false
	if cap(e.raw) > 64<<10 { // one large event is no reason to keep its memory
		e.raw, e.data, e.lines = nil, nil, nil
	}
	for some := false; ; some = true {
		l, err := e.line()
		if errors.Is(err, io.EOF) && (some || l.from < len(e.raw)) {
			return io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
		text := e.raw[l.from:l.to]
		if !e.begun {
			e.begun = true
			text = bytes.TrimPrefix(text, byteOrderMark)
		}
		if len(text) == 0 {
			return nil
		}
		if len(e.lines) == maxLines {
			return errEventTooLong
		}
		l.value = -1
		if value, ok := bytes.CutPrefix(text, []byte("data:")); ok || string(text) == "data" {
			value = bytes.TrimPrefix(value, []byte(" "))
			if !ok {
				value = nil
			}
			if e.has {
				e.data = append(e.data, '\n')
			}
			e.has = true
			l.value = l.to - len(value)
			e.data = append(e.data, value...)
		}
		e.lines = append(e.lines, l)
	}
}

// line reads a line. With an error, what there was of it is in raw from l.from on.
func (e *events) line() (l line, err error) {
	l.from = len(e.raw)
	for {
		if _, err := e.in.Peek(1); err != nil {
			return l, err
		}
		buf, _ := e.in.Peek(e.in.Buffered()) // what is there can be looked at
		if e.cr {
			e.cr = false
			if buf[0] == '\n' {
				e.crlf = true
				e.take(buf[:1])
				l.from = len(e.raw)
				continue
			}
		}
		end := bytes.IndexByte(buf, '\n')
		if cr := bytes.IndexByte(buf[:max(end, 0)], '\r'); cr >= 0 {
			end = cr
		} else if end < 0 {
			end = bytes.IndexByte(buf, '\r')
		}
		if len(e.raw)+len(buf) > maxEvent && (end < 0 || len(e.raw)+end >= maxEvent) {
			return l, errEventTooLong
		}
		if end < 0 {
			e.take(buf)
			continue
		}
		cr := buf[end] == '\r'
		e.take(buf[:end+1])
		l.to = len(e.raw) - 1
		if cr {
			// An LF may follow. It is waited for only where lines have ended so: what ends a line is no reason to hold its event back.
			if e.crlf {
				_, _ = e.in.Peek(1)
			}
			if e.in.Buffered() == 0 {
				e.cr = true
			} else if after, _ := e.in.Peek(1); after[0] == '\n' {
				e.crlf = true
				e.take(after)
			}
		}
		l.next = len(e.raw)
		return l, nil
	}
}

// more tells that another event is here already, whole as far as can be seen without reading: next won't wait for the server.
func (e *events) more() bool {
	buf, _ := e.in.Peek(e.in.Buffered())
	return bytes.Contains(buf, []byte("\n\n")) || bytes.Contains(buf, []byte("\n\r\n"))
}

func (e *events) take(b []byte) {
	n := len(b)
	e.raw = append(e.raw, b...)
	_, _ = e.in.Discard(n) // it was peeked at
}

// withData is the event with other data, which has to be of as many lines at most. All its other lines stay as they are.
func (e *events) withData(data []byte) []byte {
	out := make([]byte, 0, len(e.raw)+len(data))
	rest, more := data, true
	at := 0
	for _, l := range e.lines {
		out = append(out, e.raw[at:l.from]...) // what ends the line before, if that comes late
		at = l.next
		if l.value < 0 {
			out = append(out, e.raw[l.from:l.next]...)
			continue
		}
		if !more {
			continue
		}
		var one []byte
		one, rest, more = bytes.Cut(rest, []byte("\n"))
		out = append(out, e.raw[l.from:l.value]...)
		if len(one) > 0 && out[len(out)-1] == 'a' { // a line without a colon
			out = append(out, ':')
		}
		out = append(append(out, one...), e.raw[l.to:l.next]...)
	}
	return append(out, e.raw[at:]...)
}
