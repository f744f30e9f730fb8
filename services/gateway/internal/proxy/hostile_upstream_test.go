package proxy

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
)

// from makes h the inference server.
func from(t *testing.T, h http.HandlerFunc) func(*Options) {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(func() { srv.CloseClientConnections(); srv.Close() })
	return func(o *Options) { o.Upstream, _ = url.Parse(srv.URL) }
}

// sends is a server that answers with a stream of these bytes, in pieces of so many.
func sends(text string, size int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		for len(text) > 0 {
			n := min(size, len(text))
			_, _ = io.WriteString(w, text[:n])
			_ = http.NewResponseController(w).Flush()
			text = text[n:]
		}
	}
}

const (
	word   = `{"choices":[{"index":0,"delta":{"content":"one two"}}]}`
	silent = `{"choices":[{"index":0,"delta":{"role":"assistant"}}]}`
	total  = `"usage":{"prompt_tokens":11,"completion_tokens":5}`
	last   = `{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],` + total + `}`
)

// B33, its kind: however a server lays out its events, usage that was not asked for is hidden, billed, and everything else is handed on.
func TestB33UsageIsHiddenHoweverAServerLaysOutItsEvents(t *testing.T) {
	hidden := strings.Replace(last, total, `"usage":null`, 1)
	for name, c := range map[string]struct{ sent, want string }{
		"plain":                 {"data: " + last + "\n\n", "data: " + hidden + "\n\n"},
		"no space":              {"data:" + last + "\n\n", "data:" + hidden + "\n\n"},
		"CRLF":                  {"data: " + last + "\r\n\r\n", "data: " + hidden + "\r\n\r\n"},
		"CR":                    {"data: " + last + "\r\r", "data: " + hidden + "\r\r"},
		"byte order mark":       {"\xef\xbb\xbfdata: " + last + "\n\n", "\xef\xbb\xbfdata: " + hidden + "\n\n"},
		"comments and fields":   {": a\nevent: e\ndata: " + last + "\n: b\nid: 7\n\n", ": a\nevent: e\ndata: " + hidden + "\n: b\nid: 7\n\n"},
		"several lines":         {"data: {\"choices\":[{\"index\":0}],\ndata: " + total + "\ndata: }\n\n", "data: {\"choices\":[{\"index\":0}],\ndata: \"usage\":null\ndata: }\n\n"},
		"usage over lines":      {"data: {\"choices\":[{\"index\":0}],\ndata: \"usage\":{\"prompt_tokens\":11,\ndata: \"completion_tokens\":5}}\n\n", "data: {\"choices\":[{\"index\":0}],\ndata: \"usage\":null}\n\n"},
		"lines and comments":    {": a\ndata: {\"choices\":[{\"index\":0}],\r\n: b\r\ndata:" + total + "}\nid: 1\n\n", ": a\ndata: {\"choices\":[{\"index\":0}],\r\n: b\r\ndata:\"usage\":null}\nid: 1\n\n"},
		"usage alone, in lines": {"data: {\"choices\":[],\ndata: " + total + "}\n\n", ""},
		"usage twice":           {"data: {\"choices\":[{\"index\":0}]," + total + "," + total + "}\n\n", "data: {\"choices\":[{\"index\":0}],\"usage\":null,\"usage\":null}\n\n"},
		"another name":          {"data: " + strings.Replace(last, "]", `],"Usage":{"prompt_tokens":1,"completion_tokens":1}`, 1) + "\n\n", "data: " + strings.Replace(hidden, "]", `],"Usage":{"prompt_tokens":1,"completion_tokens":1}`, 1) + "\n\n"},
		"escaped name":          {"data: " + strings.Replace(last, `"usage"`, `"us\u0061ge"`, 1) + "\n\n", "data: " + strings.Replace(hidden, `"usage"`, `"us\u0061ge"`, 1) + "\n\n"},
	} {
		for _, size := range []int{1, 7, 1 << 20} {
			end := "data: " + silent + "\n\ndata: [DONE]\n\n"
			w := newWorld(t, from(t, sends(c.sent+end, size)))
			_, body := w.ask(chatPath, hello+`,"stream":true}`)
			if body != c.want+end {
				t.Errorf("%s, %d bytes at a time:\n%q became\n%q, want\n%q", name, size, c.sent, body, c.want+end)
			}
			if r := w.recorded(); r.InputTokens != 11 || r.OutputTokens != 5 || r.Outcome != "completed" || r.Estimated {
				t.Errorf("%s, %d bytes at a time: %+v", name, size, r)
			}
		}
	}
}

func TestAnEventLargerThanIsReadEndsTheStreamAndSaysWhy(t *testing.T) {
	big := strings.Repeat("x", maxEvent-100)
	for content, whole := range map[string]bool{big: true, big + big[:200]: false} {
		w := newWorld(t, from(t, sends(fmt.Sprintf("data: %s\n\ndata: {\"choices\":[{\"index\":0,\"delta\":{\"content\":%q}}]}\n\ndata: [DONE]\n\n", word, content), 1<<20)))
		_, body := w.ask(chatPath, hello+`,"stream":true}`)
		r := w.recorded()
		switch {
		case whole && (!strings.HasSuffix(body, "data: [DONE]\n\n") || r.Outcome != "completed"):
			t.Errorf("an event of %d bytes: %.300s, %+v", len(content), body, r)
		case !whole && (strings.Contains(body, "[DONE]") || !strings.Contains(body, `"code":"upstream_too_large"`) || r.Outcome != "failed" || r.OutputTokens < 2 || r.OutputTokens > 10):
			t.Errorf("an event of %d bytes: %.300s, %+v", len(content), body, r)
		}
	}
}

func TestAnswersThatAreTooLargeBecomeErrors(t *testing.T) {
	small := func(o *Options) { o.MaxAnswer = 1000 }
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	_, _ = z.Write(bytes.Repeat([]byte(" "), 100<<20))
	_ = z.Close()
	for name, h := range map[string]http.HandlerFunc{
		"long": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"data":"`+strings.Repeat("x", 2000)+`"}`)
		},
		"gzip bomb": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(bomb.Bytes())
		},
		"an error, as a gzip bomb": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			w.WriteHeader(http.StatusBadRequest)
			_, _ = w.Write(bomb.Bytes())
		},
	} {
		w := newWorld(t, func(o *Options) { small(o); from(t, h)(o) })
		resp, body := w.ask(chatPath, hello+`}`)
		if r := w.recorded(); resp.StatusCode != http.StatusBadGateway || !strings.Contains(body, `"code":"upstream_too_large"`) || r.Outcome != "failed" {
			t.Errorf("%s: %s %.200s, %+v", name, resp.Status, body, r)
		}
		if resp, body := w.get("/v1/models"); resp.StatusCode != http.StatusBadGateway || !strings.Contains(body, `"code":"upstream_too_large"`) {
			t.Errorf("%s of models: %s %.200s", name, resp.Status, body)
		}
	}
}

// A body that inflates without an end, in a stream, is bounded by the event.
func TestAStreamThatIsAGzipBombIsBounded(t *testing.T) {
	w := newWorld(t, from(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		_, _ = z.Write(bytes.Repeat([]byte("x"), 100<<20))
		_ = z.Close()
	}))
	_, body := w.ask(chatPath, hello+`,"stream":true}`)
	if r := w.recorded(); !strings.Contains(body, `"code":"upstream_too_large"`) || r.Outcome != "failed" || len(body) > 1000 {
		t.Errorf("%.300s, %+v", body, r)
	}
}

// What is no answer to the question is told as the server's fault: no redirect is followed, with the credential least of all.
func TestAnswersThatNoClientCanUseBecome502(t *testing.T) {
	elsewhere := 0
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere++ }))
	defer other.Close()
	for _, status := range []int{101, 204, 205, 206, 300, 301, 302, 303, 304, 307, 308} {
		w := newWorld(t, func(o *Options) {
			o.UpstreamKey = "secret"
			from(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Location", other.URL)
				if status == http.StatusSwitchingProtocols {
					w.Header().Set("Connection", "Upgrade")
					w.Header().Set("Upgrade", "websocket")
				}
				w.WriteHeader(status)
			})(o)
		})
		resp, body := w.ask(chatPath, hello+`}`)
		if r := w.recorded(); resp.StatusCode != http.StatusBadGateway || !strings.Contains(body, `"code":"upstream_status"`) || resp.Header.Get("Location") != "" || r.Outcome != "failed" || r.InputTokens+r.OutputTokens != 0 {
			t.Errorf("%d: %s %s, %+v", status, resp.Status, body, r)
		}
	}
	if elsewhere != 0 {
		t.Errorf("%d redirects were followed", elsewhere)
	}
}

func TestInformationalAnswersAndTrailersStayHere(t *testing.T) {
	w := newWorld(t, from(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</x>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("Trailer", "X-Secret")
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Set-Cookie", "a=b")
		w.Header().Set("X-Ratelimit-Limit-Requests", "1")
		_, _ = io.WriteString(w, `{"choices":[],`+total+`}`)
		w.Header().Set("X-Secret", "1")
	}))
	resp, body := w.ask(chatPath, hello+`}`)
	if r := w.recorded(); resp.StatusCode != http.StatusOK || len(resp.Trailer) != 0 || resp.Header.Get("Set-Cookie") != "" || resp.Header.Get("Link") != "" ||
		resp.Header.Get("X-Ratelimit-Limit-Requests") != "40" || r.InputTokens != 11 {
		t.Errorf("%s %v %v %s, %+v", resp.Status, resp.Header, resp.Trailer, body, r)
	}
}

// A server that does not keep to the request's own limit draws on what is left, as one without a limit does.
func TestAServerThatProducesMoreThanWasAskedForIsStoppedByTheQuota(t *testing.T) {
	w := newWorld(t, nil)
	w.e.consume = func(int64) string { return `{"allowed":false,"reason":"tpm"}` }
	_, body := w.ask(chatPath, hello+`,"stream":true,"max_tokens":10,"x_sim":{"tokens":5000}}`)
	if n := strings.Count(body, "data:"); n > 500 || !strings.Contains(body, `"finish_reason":"length"`) || !strings.HasSuffix(body, "data: [DONE]\n\n") {
		t.Errorf("%d events: %.100s", n, body)
	}
}

// A server that answers before it has read the request is heard.
func TestAServerThatAnswersEarlyIsHeard(t *testing.T) {
	w := newWorld(t, from(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusRequestEntityTooLarge)
		_, _ = io.WriteString(w, `{"error":{"message":"too much","type":"invalid_request_error","param":null,"code":"y"}}`)
	}))
	done := time.AfterFunc(20*time.Second, func() { panic("it hangs") })
	defer done.Stop()
	resp, body := w.ask(chatPath, hello+`,"x":"`+strings.Repeat("x", 5<<20)+`"}`)
	if r := w.recorded(); resp.StatusCode != http.StatusRequestEntityTooLarge && resp.StatusCode != http.StatusBadGateway || r.Outcome != "failed" {
		t.Errorf("%s %s, %+v", resp.Status, body, r)
	}
}

// A stream that breaks off before it has begun is an answer of its own, which clients know to repeat.
func TestAStreamThatBreaksOffAtOnceIsAnError(t *testing.T) {
	w := newWorld(t, from(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Type", "text/event-stream") }))
	resp, body := w.ask(chatPath, hello+`,"stream":true}`)
	if r := w.recorded(); resp.StatusCode != http.StatusBadGateway || !strings.Contains(body, `"code":"upstream_cut"`) || resp.Header.Get("Content-Type") != "application/json" || r.Outcome != "failed" {
		t.Errorf("%s %s, %+v", resp.Status, body, r)
	}
}

// The header does not wait for a first token that takes its time.
func TestTheHeaderComesBeforeASlowFirstToken(t *testing.T) {
	release := make(chan struct{})
	w := newWorld(t, from(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_ = http.NewResponseController(w).Flush()
		<-release
		_, _ = io.WriteString(w, "data: "+last+"\n\ndata: [DONE]\n\n")
	}))
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+chatPath, strings.NewReader(hello+`,"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer k1")
	resp, err := http.DefaultClient.Do(req) // hangs if the header waits for the token
	close(release)
	if err != nil || resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatal(resp, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if body, err := io.ReadAll(resp.Body); err != nil || !strings.HasSuffix(string(body), "[DONE]\n\n") {
		t.Errorf("%s, %v", body, err)
	}
}
