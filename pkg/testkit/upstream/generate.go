package upstream

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/lifecycle"
)

func itoa(i int) string { return strconv.Itoa(i) }

// shape is what chat and text completions differ in.
type shape interface {
	whole(index int, text, finish string) any
	delta(index int, text string, first bool, finish any) any
	object(stream bool) string
}

type chat struct{}

type chatChoice struct {
	Index        int       `json:"index"`
	Delta        chatDelta `json:"delta"`
	Logprobs     any       `json:"logprobs"`
	FinishReason any       `json:"finish_reason"`
}

type chatDelta struct {
	Role    string `json:"role,omitempty"`
	Content string `json:"content,omitempty"`
}

func (chat) whole(index int, text, finish string) any {
	return map[string]any{"index": index, "message": map[string]any{"role": "assistant", "content": text, "refusal": nil}, "logprobs": nil, "finish_reason": finish}
}

func (chat) delta(index int, text string, first bool, finish any) any {
	d := chatDelta{Content: text}
	if first {
		d.Role = "assistant"
	}
	return chatChoice{Index: index, Delta: d, FinishReason: finish}
}

func (chat) object(stream bool) string {
	if stream {
		return "chat.completion.chunk"
	}
	return "chat.completion"
}

type text struct{}

func (text) whole(index int, t, finish string) any {
	return map[string]any{"index": index, "text": t, "logprobs": nil, "finish_reason": finish}
}

func (text) delta(index int, t string, _ bool, finish any) any {
	return map[string]any{"index": index, "text": t, "logprobs": nil, "finish_reason": finish}
}

func (text) object(bool) string { return "text_completion" }

// answering is one request being answered.
type answering struct {
	request
	shape shape
	w     http.ResponseWriter
	out   io.Writer // w, or a compressor over it
	flush func()
	a     Answer
}

func (s *Server) generate(sh shape) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		req, body, ok := s.read(w, r)
		if !ok {
			return
		}
		sh := sh
		if req.calling() {
			sh = toolCall{req.Script.Tool}
		}
		g := &answering{request: req, shape: sh, w: w, a: Answer{Model: req.Model, Prompt: req.prompt(), Cached: req.Script.Cached, Status: http.StatusOK, Body: body}}
		defer func() { s.note(r, g.a) }()
		if !lifecycle.Sleep(r.Context(), time.Duration(req.Script.DelayMS)*time.Millisecond) {
			return
		}
		switch {
		case req.Script.Status != 0:
			g.a.Status = req.Script.Status
			if req.Script.RetryAfter > 0 {
				w.Header().Set("Retry-After", itoa(req.Script.RetryAfter))
			}
			fail(w, req.Script.Status, "scripted")
		case req.Script.Echo:
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(body)
			g.a.Finished = true
		case req.Stream:
			g.stream(r.Context())
		default:
			g.one(r.Context())
		}
	}
}

func (g *answering) usage(produced int) map[string]any {
	return map[string]any{"prompt_tokens": g.a.Prompt, "completion_tokens": produced, "total_tokens": g.a.Prompt + produced,
		"prompt_tokens_details": map[string]any{"cached_tokens": g.a.Cached}}
}

// envelope is a whole answer, or an event of a stream. A struct, as what a stream holds often: a map takes thrice as long to write, of a processor
// that benchmarks share with what they measure.
type envelope struct {
	ID      string         `json:"id"`
	Object  string         `json:"object"`
	Created int64          `json:"created"`
	Model   string         `json:"model"`
	Choices []any          `json:"choices"`
	Usage   map[string]any `json:"usage,omitempty"`
}

func (g *answering) envelope(stream bool, choices []any) *envelope {
	return &envelope{ID: "sim-" + itoa(g.a.Prompt), Object: g.shape.object(stream), Created: created, Model: g.Model, Choices: choices}
}

func (g *answering) one(ctx context.Context) {
	n, limited := g.tokens()
	if !lifecycle.Sleep(ctx, time.Duration(n*g.Script.PaceMS)*time.Millisecond) {
		return
	}
	finish := "stop"
	if limited {
		finish = "length"
	}
	var b strings.Builder
	for i := range n {
		b.WriteString(tokenText(i, g.Script.ContentBytes))
	}
	var choices []any
	for c := range g.choices() {
		choices = append(choices, g.shape.whole(c, b.String(), finish))
	}
	e := g.envelope(false, choices)
	if g.Script.Usage != "none" {
		e.Usage = g.usage(n * g.choices())
		g.a.Told = true
	}
	g.a.Produced = n * g.choices()
	answer, _ := json.Marshal(e) // plain values can't fail
	g.w.Header().Set("Content-Type", "application/json")
	if g.Script.CutAfter > 0 {
		g.a.Told = false
		g.w.Header().Set("Content-Length", itoa(len(answer)))
		_, _ = g.w.Write(answer[:len(answer)/2])
		_ = http.NewResponseController(g.w).Flush()
		panic(http.ErrAbortHandler) //nolint:forbidigo // how a handler breaks its connection
	}
	end := g.compress()
	_, err := g.out.Write(answer)
	end()
	g.a.Finished = err == nil
}

func (g *answering) stream(ctx context.Context) {
	g.w.Header().Set("Content-Type", "text/event-stream")
	end := g.compress()
	defer func() {
		if v := recover(); v != nil {
			panic(v) //nolint:forbidigo // a cut is no end: the compressor's must not be written
		}
		end()
	}()
	n, limited := g.tokens()
	for i := range n {
		switch {
		case g.Script.StallAfter > 0 && i == g.Script.StallAfter:
			<-ctx.Done()
			return
		case g.Script.CutAfter > 0 && i == g.Script.CutAfter:
			panic(http.ErrAbortHandler) //nolint:forbidigo // how a handler breaks its connection
		case g.Script.EndAfter > 0 && i == g.Script.EndAfter:
			return
		case i > 0 && !lifecycle.Sleep(ctx, time.Duration(g.Script.PaceMS)*time.Millisecond):
			return
		}
		if g.Script.Malformed && i == 1 {
			g.raw(": a comment\n\ndata: {\"not\": json\n\nevent: odd\nid: 7\nretry: 10\n\n")
		}
		for c := range g.choices() {
			e := g.envelope(true, []any{g.shape.delta(c, tokenText(i, g.Script.ContentBytes), i == 0, nil)})
			if g.Script.Usage == "each" {
				e.Usage, g.a.Told = g.usage(g.a.Produced+1), true
			}
			if !g.event(e) {
				return
			}
			g.a.Produced++
		}
	}
	finish := "stop"
	if limited {
		finish = "length"
	}
	for c := range g.choices() {
		e := g.envelope(true, []any{g.shape.delta(c, "", false, finish)})
		if g.Script.Usage == "finish" && c == g.choices()-1 {
			e.Usage, g.a.Told = g.usage(g.a.Produced), true
		}
		if !g.event(e) {
			return
		}
	}
	if g.Script.Usage != "none" && (g.StreamOptions.IncludeUsage || g.Script.Usage != "") {
		e := g.envelope(true, []any{})
		e.Usage = g.usage(g.a.Produced)
		if !g.event(e) {
			return
		}
		g.a.Told = true
	}
	g.a.Finished = g.raw("data: [DONE]\n\n")
}

func (g *answering) event(v any) bool {
	b, _ := json.Marshal(v) // plain values can't fail
	return g.raw("data: " + string(b) + "\n\n")
}

func (g *answering) raw(s string) bool {
	if g.Script.CRLF {
		s = strings.ReplaceAll(s, "\n", "\r\n")
	}
	if g.Script.Bytewise {
		for i := range len(s) {
			if _, err := io.WriteString(g.out, s[i:i+1]); err != nil {
				return false
			}
			g.flush()
		}
		return true
	}
	_, err := io.WriteString(g.out, s)
	g.flush()
	return err == nil
}

func (s *Server) embeddings(w http.ResponseWriter, r *http.Request) {
	req, body, ok := s.read(w, r)
	if !ok {
		return
	}
	var many []json.RawMessage
	inputs := 1
	if json.Unmarshal(req.Input, &many) == nil && len(many) > 0 && (many[0][0] == '"' || many[0][0] == '[') {
		inputs = len(many)
	}
	var data []any
	for i := range inputs {
		var v any = []float64{0.25, -0.5, 1}
		if req.EncodingFormat == "base64" {
			v = "AACAPgAAAL8AAIA/" // the same three, as little-endian float32
		}
		data = append(data, map[string]any{"object": "embedding", "index": i, "embedding": v})
	}
	n := req.prompt()
	s.note(r, Answer{Model: req.Model, Prompt: n, Told: true, Finished: true, Status: http.StatusOK, Body: body})
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": data, "model": req.Model, "usage": map[string]any{"prompt_tokens": n, "total_tokens": n}})
}
