package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/tollgate-dev/tollgate/services/gateway/internal/tokens"
)

// streaming is a stream on its way to the client.
type streaming struct {
	*flight
	resp     *http.Response
	in       *events
	last     chunk // whose id, created and model an event of our own bears
	finished map[int]bool

	mu   sync.Mutex // of the connection to the client
	sent bool       // the header is; until then a fault is an answer of its own
	gone error      // the client's connection
}

var doneData = []byte("[DONE]")

func (f *flight) stream(ctx context.Context, resp *http.Response) error {
	st := &streaming{flight: f, resp: resp, in: newEvents(resp.Body), finished: map[int]bool{}}
	defer st.announce()()
	for {
		err := st.in.next()
		switch {
		case err != nil && f.ctx.Err() != nil:
			f.settle(outcomeCancelled)
			return nil // nobody is left to be told
		case errors.Is(err, io.EOF) && st.complete():
			// It ended without [DONE], as some servers do. The client gets what there was.
			f.settle(outcomeCompleted)
			st.write(st.in.raw) // the end of a line that has been handed on, if anything
			return nil
		case err != nil:
			return st.broken(ctx, err)
		}
		end := bytes.Equal(st.in.data, doneData)
		if end {
			f.used.ended = true
			f.settle(outcomeCompleted)
		}
		st.put(st.event())
		if end || !st.in.more() {
			st.flush()
		}
		switch {
		case end:
			// The server's connection can be used again once it is read to its end, which is due.
			f.drain(resp.Body)
			return nil
		case st.left():
			f.settle(outcomeCancelled)
			return nil // the settlement says that the client has gone
		case !f.mayGoOn():
			f.s.m.cutShort.Inc()
			st.endByQuota()
			return nil
		}
	}
}

// drainWithin is how long the rest of an answer after its end is awaited.
const drainWithin = 100 * time.Millisecond

func (f *flight) drain(rest io.ReadCloser) {
	timer := time.AfterFunc(drainWithin, func() { _ = rest.Close() })
	defer timer.Stop()
	_, _ = io.CopyN(io.Discard, rest, 4<<10) // if there is more, the connection is given up
}

// event reads one event and gives what of it the client is to see.
func (st *streaming) event() []byte {
	raw, data := st.in.raw, st.in.data
	if len(data) == 0 || bytes.Equal(data, doneData) {
		return raw
	}
	var c chunk
	if err := c.read(data); err != nil {
		st.s.m.malformed.Inc()
		return raw
	}
	if len(c.ID) > 0 {
		st.last = c
	}
	for _, ch := range c.Choices {
		st.used.add(ch)
		if ch.FinishReason != nil {
			st.finished[ch.Index] = true
		}
	}
	st.used.ended = st.complete()
	if !c.Usage {
		return raw
	}
	there := false
	usages(data, func(u figures) {
		there = true
		st.used.tell(u)
	})
	switch {
	case st.req.IncludeUsage || !there:
		return raw
	case len(c.Choices) == 0:
		return nil
	}
	return st.in.withData(withoutUsage(data))
}

// complete tells that every choice has ended.
func (st *streaming) complete() bool {
	return len(st.finished) > 0 && int64(len(st.finished)) >= st.choices
}

// headerWithin is how long the header waits for the first event, to be sent with it: a client should not wake up twice for an answer that is there.
const headerWithin = 2 * time.Millisecond

// announce sends the header, if no event comes soon. The func that it gives ends that.
func (st *streaming) announce() (stop func()) {
	over := false
	timer := time.AfterFunc(headerWithin, func() {
		st.mu.Lock()
		defer st.mu.Unlock()
		if !st.sent && !over {
			st.flushLocked()
		}
	})
	return func() {
		timer.Stop()
		st.mu.Lock()
		defer st.mu.Unlock()
		over = true // whoever has begun to flush has ended
	}
}

// header sends the header, once.
func (st *streaming) header() {
	if st.sent {
		return
	}
	st.sent = true
	handBack(st.x.w.Header(), st.resp.Header)
	st.x.w.Header().Set("X-Accel-Buffering", "no") // proxies before us hand events on at once, too
	st.x.w.WriteHeader(st.resp.StatusCode)
}

// put writes what a flush sends, with all that was put before: events that are here at once leave at once.
func (st *streaming) put(b []byte) {
	if len(b) == 0 {
		return
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.gone != nil {
		return
	}
	st.header()
	st.s.alive(st.x)
	_, st.gone = st.x.w.Write(b)
}

// left tells that the client can't be written to any more.
func (st *streaming) left() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.gone != nil
}

func (st *streaming) flush() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.flushLocked()
}

func (st *streaming) flushLocked() {
	if st.gone != nil {
		return
	}
	st.header()
	st.s.alive(st.x)
	st.gone = http.NewResponseController(st.x.w).Flush()
}

// write puts and flushes.
func (st *streaming) write(b []byte) {
	st.put(b)
	st.flush()
}

// broken ends a stream that the server has broken off: with an error for clients that read events, and a broken connection for all others. Where
// nothing of it was sent yet, the error is the answer.
func (st *streaming) broken(ctx context.Context, err error) error {
	st.settle(outcomeFailed)
	e := upstreamFailed(http.StatusBadGateway, "upstream_cut", "The inference server broke the stream off.", err)
	switch {
	case errors.Is(context.Cause(ctx), errIdle):
		e.Status = http.StatusGatewayTimeout
		e.Code, e.Message = "upstream_timeout", "The inference server stopped in the middle of the stream."
	case errors.Is(err, errEventTooLong):
		e.Code, e.Message = "upstream_too_large", "The inference server sent an event of more than 8 MiB."
	}
	st.mu.Lock()
	sent := st.sent
	st.mu.Unlock()
	if sent {
		st.write(append(append([]byte("data: "), e.Body()...), "\n\n"...))
	}
	return e
}

// ending is an event of our own.
type ending struct {
	ID      json.RawMessage `json:"id,omitempty"`
	Object  json.RawMessage `json:"object,omitempty"`
	Created json.RawMessage `json:"created,omitempty"`
	Model   json.RawMessage `json:"model,omitempty"`
	Choices []any           `json:"choices"`
	Usage   *usageOut       `json:"usage,omitempty"`
}

type usageOut struct {
	Prompt     int64 `json:"prompt_tokens"`
	Completion int64 `json:"completion_tokens"`
	Total      int64 `json:"total_tokens"`
}

type chatEnd struct {
	Index        int      `json:"index"`
	Delta        struct{} `json:"delta"`
	FinishReason string   `json:"finish_reason"`
}

type textEnd struct {
	Index        int    `json:"index"`
	Text         string `json:"text"`
	FinishReason string `json:"finish_reason"`
}

// endByQuota ends a stream whose quota is used up as a limit on its tokens would have.
func (st *streaming) endByQuota() {
	st.settle(outcomeCompleted)
	e := ending{ID: st.last.ID, Object: st.last.Object, Created: st.last.Created, Model: st.last.Model, Choices: []any{}}
	for i := range int(min(st.choices, 128)) {
		switch {
		case st.finished[i]:
		case st.kind == tokens.Completion:
			e.Choices = append(e.Choices, textEnd{Index: i, FinishReason: "length"})
		default:
			e.Choices = append(e.Choices, chatEnd{Index: i, FinishReason: "length"})
		}
	}
	send := func(e ending) {
		b, _ := json.Marshal(e) // what was read as JSON can be written
		st.write(append(append([]byte("data: "), b...), "\n\n"...))
	}
	send(e)
	if st.req.IncludeUsage {
		u, _, _ := st.usage()
		e.Choices, e.Usage = []any{}, &usageOut{u.InputTokens, u.OutputTokens, u.InputTokens + u.OutputTokens}
		send(e)
	}
	st.write([]byte("data: [DONE]\n\n"))
}
