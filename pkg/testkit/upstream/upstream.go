package upstream

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// DefaultTokens is how many tokens an answer has if neither the request nor its script says less or more.
const DefaultTokens = 16

// maxBody bounds a request, in bytes.
const maxBody = 64 << 20

// Options are a Server's settings.
type Options struct {
	Models   []string      // what GET /v1/models lists; DefaultModels if nil
	Pace     time.Duration // between two tokens of a stream; 0: none
	Scripted bool          // obey the field x_sim
	Remember bool          // keep what Answers tells; it grows with each request
}

// DefaultModels are those of the services' own defaults.
var DefaultModels = []string{"grok-2", "grok-2-mini", "grok-4"}

// Script says how a request is to be answered. The zero value is a sound answer.
type Script struct {
	Tokens     int    `json:"tokens,omitempty"`      // of output, whatever the request's limit
	Prompt     int    `json:"prompt,omitempty"`      // input tokens that the usage tells
	Cached     int    `json:"cached,omitempty"`      // of them, from a cache
	DelayMS    int    `json:"delay_ms,omitempty"`    // before the answer's header
	PaceMS     int    `json:"pace_ms,omitempty"`     // between tokens
	StallAfter int    `json:"stall_after,omitempty"` // tokens, then nothing until the client leaves
	CutAfter   int    `json:"cut_after,omitempty"`   // tokens, then the connection breaks
	EndAfter   int    `json:"end_after,omitempty"`   // tokens, then the stream ends as if it were whole, without finish_reason and [DONE]
	Status     int    `json:"status,omitempty"`      // an error of this status instead of an answer
	RetryAfter int    `json:"retry_after,omitempty"` // seconds, beside Status
	Malformed  bool   `json:"malformed,omitempty"`   // events that are no JSON, and comments, among the others
	CRLF       bool   `json:"crlf,omitempty"`        // line ends
	Bytewise   bool   `json:"bytewise,omitempty"`    // each byte is flushed by itself
	Usage      string `json:"usage,omitempty"`       // "" as asked; "none"; "each": running totals on every chunk; "finish": in the finish chunk and again by itself;
	// "each choice": each choice's running total on its every chunk, and that of all by itself, as vLLM's continuous_usage_stats; "finish choice": each
	// choice's total in its finish chunk, and none of all
	Encoding     string `json:"encoding,omitempty"`      // gzip, br or zstd
	Echo         bool   `json:"echo,omitempty"`          // the bytes that came are the answer
	ContentBytes int    `json:"content_bytes,omitempty"` // of each token's text, instead of its own
	Tool         string `json:"tool,omitempty"`          // of a chat: the answer calls this tool, until its result is the last message
}

// Answer is what a request was answered.
type Answer struct {
	Path, Model    string
	Prompt, Cached int
	Produced       int  // output tokens that were written
	Told           bool // usage was written
	Finished       bool // the answer was written whole
	Status         int
	Header         http.Header // of the request
	Body           []byte      // of the request
}

// Server is a simulated inference server. It is an http.Handler, safe for concurrent use.
type Server struct {
	o       Options
	mux     *http.ServeMux
	open    atomic.Int64
	served  atomic.Int64
	mu      sync.Mutex
	answers map[string]Answer
}

// New makes a server.
func New(o Options) *Server {
	if o.Models == nil {
		o.Models = DefaultModels
	}
	s := &Server{o: o, mux: http.NewServeMux(), answers: map[string]Answer{}}
	s.mux.HandleFunc("POST /v1/chat/completions", s.generate(chat{}))
	s.mux.HandleFunc("POST /v1/completions", s.generate(text{}))
	s.mux.HandleFunc("POST /v1/embeddings", s.embeddings)
	s.mux.HandleFunc("GET /v1/models", s.models)
	s.mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fail(w, http.StatusNotFound, "no such path") })
	return s
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.open.Add(1)
	s.served.Add(1)
	defer s.open.Add(-1)
	s.mux.ServeHTTP(w, r)
}

// Open is how many requests are being answered.
func (s *Server) Open() int64 { return s.open.Load() }

// Served is how many requests have come.
func (s *Server) Served() int64 { return s.served.Load() }

// Answers is what was answered, by X-Request-Id, if Options.Remember is set.
func (s *Server) Answers() map[string]Answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.answers)
}

func (s *Server) note(r *http.Request, a Answer) {
	if !s.o.Remember {
		return
	}
	a.Path, a.Header = r.URL.Path, r.Header.Clone()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers[r.Header.Get("X-Request-Id")] = a
}

// request is what of a request the answer depends on.
type request struct {
	Model               string          `json:"model"`
	Messages            json.RawMessage `json:"messages"`
	Prompt              json.RawMessage `json:"prompt"`
	Input               json.RawMessage `json:"input"`
	Stream              bool            `json:"stream"`
	N                   int             `json:"n"`
	MaxTokens           *int            `json:"max_tokens"`
	MaxCompletionTokens *int            `json:"max_completion_tokens"`
	EncodingFormat      string          `json:"encoding_format"`
	StreamOptions       struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	Script Script `json:"x_sim"`
}

func (s *Server) read(w http.ResponseWriter, r *http.Request) (request, []byte, bool) {
	var req request
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err == nil {
		err = json.Unmarshal(body, &req)
	}
	if err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return req, nil, false
	}
	if !s.o.Scripted {
		req.Script = Script{}
	}
	if req.Script.PaceMS == 0 {
		req.Script.PaceMS = int(s.o.Pace.Milliseconds())
	}
	return req, body, true
}

// prompt is the input's tokens.
func (r request) prompt() int {
	if r.Script.Prompt > 0 {
		return r.Script.Prompt
	}
	return (len(r.Messages) + len(r.Prompt) + len(r.Input) + 3) / 4
}

// tokens is the output's, of each choice.
func (r request) tokens() (n int, limited bool) {
	if r.Script.Tokens > 0 {
		return r.Script.Tokens, false
	}
	n = DefaultTokens
	for _, limit := range []*int{r.MaxTokens, r.MaxCompletionTokens} {
		if limit != nil && *limit <= n {
			n, limited = max(*limit, 0), true
		}
	}
	return n, limited
}

func (r request) choices() int { return max(r.N, 1) }

func (s *Server) models(w http.ResponseWriter, r *http.Request) {
	data := []map[string]any{}
	for _, m := range s.o.Models {
		data = append(data, map[string]any{"id": m, "object": "model", "created": created, "owned_by": "simulated"})
	}
	s.note(r, Answer{Status: http.StatusOK, Finished: true})
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": data})
}

// created stands in every answer: the answer is the same at any time.
const created = 1_700_000_000

func fail(w http.ResponseWriter, status int, message string) {
	writeJSON(w, status, map[string]any{"error": map[string]any{"message": message, "type": "simulated_error", "param": nil, "code": nil}})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client has gone if this fails
}

func tokenText(i, bytes int) string {
	t := " t" + itoa(i)
	if bytes > len(t) {
		t += strings.Repeat("x", bytes-len(t))
	}
	return t
}
