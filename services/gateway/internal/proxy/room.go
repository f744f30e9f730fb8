package proxy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/services/gateway/internal/dialect"
)

// room bounds the memory of all requests' bodies together, or of all whole answers. It is safe for concurrent use. Nobody waits for it: whoever holds
// some of it may need more, and two that wait for each other would wait for good.
type room struct {
	own, full string // what is told to whoever has used its share up, and where nothing is left
	most      int64  // bytes of all
	share     int64  // bytes of one subject

	mu  sync.Mutex
	all int64
	of  map[subject.Subject]int64
}

// shares is by how many subjects at least all the room can be taken.
const shares = 4

// fullWait is what is told to whoever finds no room.
const fullWait = time.Second

// newRoom makes room for texts of which one takes so many bytes at most.
func newRoom(own, full string, most, one int64) *room {
	return &room{own: own, full: full, most: most, share: max(one, most/shares), of: map[subject.Subject]int64{}}
}

func (r *room) take(who subject.Subject, n int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.of[who]+n > r.share:
		return &apiError{told: dialect.Error{Status: http.StatusTooManyRequests, Type: typeRateLimit, Code: typeRateLimit, RetryAfter: fullWait, Message: r.own}, outcome: outcomeRefused}
	case r.all+n > r.most:
		return &apiError{told: dialect.Error{Status: http.StatusServiceUnavailable, Type: typeServer, Code: "overloaded", RetryAfter: fullWait, Message: r.full}, outcome: outcomeUnavailable}
	}
	r.all += n
	r.of[who] += n
	return nil
}

func (r *room) give(who subject.Subject, n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all -= n
	if r.of[who] -= n; r.of[who] == 0 {
		delete(r.of, who)
	}
}

// held is what an exchange has of the room.
type held struct {
	room *room
	who  subject.Subject
	n    int64
}

// grow takes room up to n bytes.
func (h *held) grow(n int64) error {
	if n <= h.n {
		return nil
	}
	err := h.room.take(h.who, n-h.n)
	if err == nil {
		h.n = n
	}
	return err
}

// free gives the room back. It may be called again.
func (h *held) free() {
	if h.n > 0 {
		h.room.give(h.who, h.n)
		h.n = 0
	}
}

// answerRoom is what an exchange has of the answers' room.
type answerRoom struct {
	held
	beside chan struct{} // has the one place beside the room
	has    bool
}

// grow takes room up to n bytes. Where there is none it waits for the place beside the room, whose holder needs no more: so whoever holds some room
// while he waits for more gets on in the end. Error: ctx has ended.
func (a *answerRoom) grow(ctx context.Context, n int64) error {
	if a.has {
		return nil
	}
	none := a.held.grow(n)
	if none == nil {
		return nil
	}
	select {
	case a.beside <- struct{}{}:
		a.has = true
		return nil
	case <-ctx.Done():
		return none
	}
}

func (a *answerRoom) free() {
	a.held.free()
	if a.has {
		a.has = false
		<-a.beside
	}
}

// fill reads a text of a length (-1: not known, it ends with io.EOF) into memory that grow is asked for. At first that is first bytes; once they have come
// it is all that the sender says there is, or twice as much up to most: so a byte is copied once at most, and for who sends little, little is held.
func fill(in io.Reader, length, first, most int64, grow func(int64) error) ([]byte, error) {
	size := min(first, most)
	if length >= 0 {
		size = min(size, length)
	}
	var text []byte
	for {
		if err := grow(size); err != nil {
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
			return text, nil
		case err != nil:
			return nil, err
		case length >= 0:
			size = length
		case size == most:
			return text, nil
		default:
			size = min(2*size, most)
		}
	}
}
