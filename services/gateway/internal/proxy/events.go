package proxy

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// maxEvent bounds an event of a stream, in bytes.
const maxEvent = 8 << 20

var errEventTooLong = errors.New("an event of the stream is too long")

// events reads a stream of server-sent events, and keeps their bytes. Lines end in LF or CRLF; no server ends them in CR alone.
type events struct {
	in   *bufio.Reader
	raw  []byte // of the event, reused
	data []byte // reused
	at   int    // where in raw the data begins, if it is one line; else -1
}

func newEvents(r io.Reader) *events { return &events{in: bufio.NewReaderSize(r, 4<<10)} }

// next reads up to the blank line that ends an event, or to the end: io.EOF if nothing is left, io.ErrUnexpectedEOF if the last event is not whole.
func (e *events) next() error {
	e.raw, e.data, e.at = e.raw[:0], e.data[:0], -1
	if cap(e.raw) > 64<<10 { // one large event is no reason to keep its memory
		e.raw, e.data = nil, nil
	}
	lines := 0
	for {
		begin := len(e.raw)
		for {
			part, err := e.in.ReadSlice('\n')
			if len(e.raw)+len(part) > maxEvent {
				return errEventTooLong
			}
			e.raw = append(e.raw, part...)
			if err == nil {
				break
			}
			if errors.Is(err, bufio.ErrBufferFull) {
				continue
			}
			if errors.Is(err, io.EOF) && len(e.raw) > 0 {
				return io.ErrUnexpectedEOF
			}
			return err
		}
		line := bytes.TrimRight(e.raw[begin:], "\r\n")
		if len(line) == 0 {
			return nil
		}
		value, ok := bytes.CutPrefix(line, []byte("data:"))
		if !ok {
			continue
		}
		value = bytes.TrimPrefix(value, []byte(" "))
		if lines++; lines > 1 {
			e.data, e.at = append(e.data, '\n'), -1
		} else {
			e.at = begin + len(line) - len(value)
		}
		e.data = append(e.data, value...)
	}
}
