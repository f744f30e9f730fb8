package proxy

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/services/gateway/internal/dialect"
)

// bodies bounds the memory of all requests' bodies together. It is safe for concurrent use. Nobody waits for room: whoever holds some of it may
// need more, and two that wait for each other would wait for good.
type bodies struct {
	most  int64 // bytes of all
	share int64 // bytes of one subject

	mu  sync.Mutex
	all int64
	of  map[subject.Subject]int64
}

// shares is by how many subjects at least all the room can be taken.
const shares = 4

// fullWait is what is told to whoever finds no room.
const fullWait = time.Second

func newBodies(most, one int64) *bodies {
	return &bodies{most: most, share: max(one, most/shares), of: map[subject.Subject]int64{}}
}

func (b *bodies) take(who subject.Subject, n int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.of[who]+n > b.share:
		return &apiError{told: dialect.Error{Status: http.StatusTooManyRequests, Type: typeRateLimit, Code: typeRateLimit, RetryAfter: fullWait,
			Message: "Too many large requests of yours are on their way at once. Try again when some of them are answered."}, outcome: outcomeRefused}
	case b.all+n > b.most:
		return &apiError{told: dialect.Error{Status: http.StatusServiceUnavailable, Type: typeServer, Code: "overloaded", RetryAfter: fullWait,
			Message: "Too many large requests are on their way at once. Try again."}, outcome: outcomeUnavailable}
	}
	b.all += n
	b.of[who] += n
	return nil
}

func (b *bodies) give(who subject.Subject, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all -= n
	if b.of[who] -= n; b.of[who] == 0 {
		delete(b.of, who)
	}
}

// held is what an exchange has of the room.
type held struct {
	bodies *bodies
	who    subject.Subject
	n      int64
}

// grow takes room up to n bytes.
func (h *held) grow(n int64) error {
	err := h.bodies.take(h.who, n-h.n)
	if err == nil {
		h.n = n
	}
	return err
}

// forget gives the body's room back. It may be called again.
func (x *exchange) forget() {
	if x.body.n > 0 {
		x.body.bodies.give(x.body.who, x.body.n)
		x.body.n = 0
	}
}

// firstRead is how much room a body gets before its sender has sent anything. Once that much has come it gets all that it says it has: so a byte is
// copied once at most, and who sends little holds little.
const firstRead = 256 << 10

// readBody reads a body once.
func (s *Server) readBody(x *exchange) ([]byte, error) {
	if x.r.Header.Get("Content-Encoding") != "" && x.r.Header.Get("Content-Encoding") != "identity" {
		return nil, refusedAs(http.StatusUnsupportedMediaType, "unsupported_media_type", "The body must not be compressed: its tokens are counted.")
	}
	length := x.r.ContentLength // -1: not known
	if length > s.o.MaxBody {
		return nil, &http.MaxBytesError{Limit: s.o.MaxBody}
	}
	in := http.MaxBytesReader(x.w.ResponseWriter, x.r.Body, s.o.MaxBody)
	x.body = held{bodies: s.bodies, who: x.who.Subject}
	size := int64(firstRead)
	if length >= 0 {
		size = min(size, length)
	}
	var text []byte
	for {
		if err := x.body.grow(size); err != nil {
			return nil, err
		}
		bigger := make([]byte, len(text), size)
		copy(bigger, text)
		text = bigger
		var err error
		for err == nil && int64(len(text)) < size {
			var n int
			n, err = in.Read(text[len(text):size])
			text = text[:len(text)+n]
		}
		switch {
		case int64(len(text)) == length, length < 0 && errors.Is(err, io.EOF): // one that breaks off is io.ErrUnexpectedEOF
			_ = http.NewResponseController(x.w).SetReadDeadline(time.Time{}) // from here on a read only waits for the client to leave
			return text, nil
		case err != nil:
			return nil, s.bodyError(err)
		case length >= 0:
			size = length
		default:
			size = min(2*size, s.o.MaxBody+1) // of the byte too many the reader makes an error
		}
	}
}

func (s *Server) bodyError(err error) error {
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return err
	case errors.Is(err, os.ErrDeadlineExceeded):
		e := refusedAs(http.StatusRequestTimeout, "body_timeout", fmt.Sprintf("The body did not come within %s.", s.o.BodyWait))
		e.cause = err
		return e
	}
	e := invalid("", "The body could not be read to its end.")
	e.cause = err
	return e
}
