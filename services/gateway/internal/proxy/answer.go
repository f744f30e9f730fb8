package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"time"
)

// fly has a granted request answered, and settles it.
func (f *flight) fly() error {
	x, s := f.x, f.s
	stop := f.keep()
	defer stop()
	ctx, cancel := context.WithCancelCause(f.ctx)
	defer cancel(nil)
	idle := time.AfterFunc(s.o.HeaderWait, func() { cancel(errIdle) })
	defer idle.Stop()
	if f.ctx.Err() != nil { // the client left during the decision
		f.settle(outcomeCancelled)
		return nil
	}
	f.begun = true
	resp, err := s.send(ctx, x, f.req)
	if err != nil {
		f.begun = f.ctx.Err() != nil // of a client that left nobody knows how far the server got; one that failed has produced nothing
		return f.failedBy(err)
	}
	defer func() { _ = resp.Body.Close() }()
	f.req.Drop() // the server has it; a stream may last for long
	x.forget()
	resp.Body = &watched{resp.Body, idle, s.o.IdleWait}
	s.m.firstByte.WithLabelValues(s.m.label(f.res.Decision.Model)).Observe(time.Since(x.arrived).Seconds())
	if kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type")); resp.StatusCode == http.StatusOK && err == nil && kind == "text/event-stream" {
		return f.stream(ctx, resp)
	}
	return f.answer(ctx, resp)
}

// watched gives each read its time.
type watched struct {
	io.ReadCloser
	timer *time.Timer
	wait  time.Duration
}

func (w *watched) Read(p []byte) (int, error) {
	w.timer.Reset(w.wait)
	return w.ReadCloser.Read(p)
}

// answer hands an answer on that is no stream. It is read whole first: its usage is at its end, and a broken one can still become an error.
func (f *flight) answer(ctx context.Context, resp *http.Response) error {
	failed := resp.StatusCode >= http.StatusBadRequest
	if failed {
		f.begun = false // it has produced nothing
	}
	text, err := f.s.readAnswer(resp)
	switch {
	case err != nil && errors.Is(context.Cause(ctx), errIdle):
		return f.failedBy(upstreamFailed(http.StatusGatewayTimeout, "upstream_timeout", "The inference server stopped in the middle of its answer.", err))
	case err != nil:
		return f.failedBy(err)
	}
	var c chunk
	_ = c.read(text) // what is no JSON is the client's to understand
	var told []figures
	if c.Usage {
		usages(text, func(u figures) { told = append(told, u) })
	}
	if !slices.ContainsFunc(told, func(u figures) bool { return u.completion.ok && u.completion.n > 0 }) { // else nobody asks what was counted
		for _, ch := range c.Choices {
			f.used.add(ch)
		}
	}
	for _, u := range told {
		f.used.tell(u)
	}
	f.used.ended = true
	outcome := outcomeCompleted
	if failed {
		outcome = outcomeFailed
	}
	if f.ctx.Err() != nil {
		outcome = outcomeCancelled
	}
	f.settle(outcome)
	return f.s.whole(f.x, resp, bytes.NewReader(text), len(text))
}

// readAnswer reads an answer that is no stream to its end.
func (s *Server) readAnswer(resp *http.Response) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(resp.Body, s.o.MaxAnswer+1))
	switch {
	case err != nil:
		return nil, upstreamFailed(http.StatusBadGateway, "upstream_cut", "The inference server broke its answer off.", err)
	case int64(len(text)) > s.o.MaxAnswer:
		return nil, upstreamFailed(http.StatusBadGateway, "upstream_too_large", fmt.Sprintf("The inference server's answer is larger than %d bytes.", s.o.MaxAnswer), nil)
	}
	return text, nil
}
