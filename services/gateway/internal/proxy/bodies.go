package proxy

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"
)

// firstRead is how much room a body gets before its sender has sent anything.
const firstRead = 256 << 10

// readBody reads a body once.
func (s *Server) readBody(x *exchange) ([]byte, error) {
	if x.r.Header.Get("Content-Encoding") != "" && x.r.Header.Get("Content-Encoding") != "identity" {
		return nil, refusedAs(http.StatusUnsupportedMediaType, "unsupported_media_type", "The body must not be compressed: its tokens are counted.")
	}
	if x.r.ContentLength > s.o.MaxBody {
		return nil, &http.MaxBytesError{Limit: s.o.MaxBody}
	}
	in := http.MaxBytesReader(x.w.ResponseWriter, x.r.Body, s.o.MaxBody)
	x.body = held{room: s.bodies, who: x.who.Subject}
	// Of the byte too many the reader makes an error.
	text, err := fill(in, x.r.ContentLength, firstRead, s.o.MaxBody+1, x.body.grow)
	var full *apiError
	switch {
	case errors.As(err, &full):
		return nil, err
	case err != nil:
		return nil, s.bodyError(err)
	}
	_ = http.NewResponseController(x.w).SetReadDeadline(time.Time{}) // from here on a read only waits for the client to leave
	return text, nil
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
