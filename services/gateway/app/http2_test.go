package app

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// serving starts the gateway's server over h and gives its address.
func serving(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := newServer(slog.New(slog.DiscardHandler), h)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	t.Cleanup(func() {
		_ = srv.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// h2 is a client that speaks HTTP/2 frame by frame.
type h2 struct {
	t    *testing.T
	conn net.Conn
	*http2.Framer
	headers bytes.Buffer
	enc     *hpack.Encoder
}

func dialH2(t *testing.T, addr string) *h2 {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	c := &h2{t: t, conn: conn, Framer: http2.NewFramer(conn, conn)}
	c.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	c.enc = hpack.NewEncoder(&c.headers)
	_, err = io.WriteString(conn, http2.ClientPreface)
	if err := errors.Join(err, c.WriteSettings()); err != nil {
		t.Fatal(err)
	}
	return c
}

// block encodes a request's headers.
func (c *h2) block(more ...hpack.HeaderField) []byte {
	c.headers.Reset()
	for _, f := range append([]hpack.HeaderField{{Name: ":method", Value: "GET"}, {Name: ":scheme", Value: "http"}, {Name: ":authority", Value: "x"}, {Name: ":path", Value: "/"}}, more...) {
		_ = c.enc.WriteField(f)
	}
	return c.headers.Bytes()
}

// ask begins a stream.
func (c *h2) ask(stream uint32) error {
	return c.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: c.block(), EndStream: true, EndHeaders: true})
}

// until reads frames until is says that it is enough.
func (c *h2) until(is func(http2.Frame) bool) {
	c.t.Helper()
	for {
		f, err := c.ReadFrame()
		if err != nil {
			c.t.Fatal(err)
		}
		if is(f) {
			return
		}
	}
}

func TestHTTP2LimitsAreToldAndKept(t *testing.T) {
	running := new(atomic.Int64)
	release := make(chan struct{})
	addr := serving(t, func(http.ResponseWriter, *http.Request) {
		running.Add(1)
		<-release
	})
	defer close(release)
	c := dialH2(t, addr)
	c.until(func(f http2.Frame) bool {
		s, ok := f.(*http2.SettingsFrame)
		if !ok {
			return false
		}
		streams, _ := s.Value(http2.SettingMaxConcurrentStreams)
		header, _ := s.Value(http2.SettingMaxHeaderListSize)
		window, _ := s.Value(http2.SettingInitialWindowSize)
		if streams != maxStreams || header != maxHeader+320 || window != maxUnread {
			t.Errorf("%d streams, %d bytes of header, %d of a body", streams, header, window)
		}
		return true
	})
	if err := c.WriteSettingsAck(); err != nil {
		t.Fatal(err)
	}
	for i := range uint32(maxStreams + 1) {
		if err := c.ask(2*i + 1); err != nil {
			t.Fatal(err)
		}
	}
	c.until(func(f http2.Frame) bool {
		r, ok := f.(*http2.RSTStreamFrame)
		if ok && (r.StreamID != 2*maxStreams+1 || r.ErrCode != http2.ErrCodeRefusedStream && r.ErrCode != http2.ErrCodeProtocol) {
			t.Errorf("stream %d was ended by %s", r.StreamID, r.ErrCode)
		}
		return ok
	})
	if n := running.Load(); n > maxStreams {
		t.Errorf("%d at once", n)
	}
}

// CVE-2023-44487: streams that are reset as soon as they are begun are not free of the limit.
func TestRapidResetsAreBoundedAndThenCloseTheConnection(t *testing.T) {
	running, most := new(atomic.Int64), new(atomic.Int64)
	release := make(chan struct{})
	addr := serving(t, func(http.ResponseWriter, *http.Request) {
		most.Store(max(most.Load(), running.Add(1)))
		<-release
	})
	defer close(release)
	c := dialH2(t, addr)
	go func() {
		for i := range uint32(20_000) {
			if c.ask(2*i+1) != nil || c.WriteRSTStream(2*i+1, http2.ErrCodeCancel) != nil {
				return // the server has closed the connection
			}
		}
	}()
	c.until(func(f http2.Frame) bool {
		away, ok := f.(*http2.GoAwayFrame)
		if ok && (away.ErrCode != http2.ErrCodeEnhanceYourCalm || away.LastStreamID > 2*(5*maxStreams+2)+1) {
			t.Errorf("%s after stream %d", away.ErrCode, away.LastStreamID)
		}
		return ok
	})
	if n := most.Load(); n > maxStreams || n < maxStreams/2 {
		t.Errorf("%d handlers at once, want %d at most", n, maxStreams)
	}
}

func TestHeadersThatAreTooLargeAre431(t *testing.T) {
	served := new(atomic.Int64)
	addr := serving(t, func(http.ResponseWriter, *http.Request) { served.Add(1) })
	var two, one http.Protocols
	two.SetUnencryptedHTTP2(true)
	one.SetHTTP1(true)
	for name, p := range map[string]*http.Protocols{"HTTP/2": &two, "HTTP/1.1": &one} {
		client := &http.Client{Transport: &http.Transport{Protocols: p}}
		t.Cleanup(client.CloseIdleConnections)
		for size, want := range map[int]int{maxHeader - 1000: http.StatusOK, maxHeader + 16<<10: http.StatusRequestHeaderFieldsTooLarge} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr, nil)
			if err != nil {
				t.Fatal(err)
			}
			for i := range size / 1000 {
				req.Header.Set(fmt.Sprintf("X-%d", i), strings.Repeat("x", 960))
			}
			before := served.Load()
			resp, err := client.Do(req)
			if err != nil {
				// Go's own client keeps to what an HTTP/2 server tells of its limits.
				if want == http.StatusOK || served.Load() != before {
					t.Errorf("%s, %d bytes: %v", name, size, err)
				}
				continue
			}
			_ = resp.Body.Close()
			if resp.StatusCode != want || served.Load()-before != map[bool]int64{true: 1}[want == http.StatusOK] {
				t.Errorf("%s, %d bytes: %s", name, size, resp.Status)
			}
		}
	}
}

// CVE-2023-45288: headers that never end do not cost more than those that are too large.
func TestHeadersWithoutEndCloseTheConnection(t *testing.T) {
	served := new(atomic.Int64)
	c := dialH2(t, serving(t, func(http.ResponseWriter, *http.Request) { served.Add(1) }))
	sent := new(atomic.Int64)
	go func() {
		if c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.block(), EndStream: true}) != nil {
			return
		}
		for i := 0; ; i++ {
			c.headers.Reset()
			_ = c.enc.WriteField(hpack.HeaderField{Name: fmt.Sprintf("x-%d", i), Value: strings.Repeat("x", 1000), Sensitive: true})
			if c.WriteContinuation(1, false, c.headers.Bytes()) != nil {
				return
			}
			sent.Add(1000)
		}
	}()
	for {
		f, err := c.ReadFrame()
		if err != nil {
			break
		}
		if away, ok := f.(*http2.GoAwayFrame); ok && away.ErrCode != http2.ErrCodeNo {
			break
		}
	}
	if n := sent.Load(); n > 8<<20 || served.Load() != 0 {
		t.Errorf("%d bytes of header were taken, %d requests served", n, served.Load())
	}
}

// An inference server's header is bounded, too.
func TestAnAnswersHeaderIsBounded(t *testing.T) {
	for size, taken := range map[int]bool{maxAnswerHeader / 2: true, 2 * maxAnswerHeader: false} {
		upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Large", strings.Repeat("x", size))
		}))
		transport := newTransport(Config{Connections: 1})
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, upstream.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := transport.RoundTrip(req)
		if (err == nil) != taken {
			t.Errorf("%d bytes: %v", size, err)
		}
		if err == nil {
			_ = resp.Body.Close()
		}
		transport.CloseIdleConnections()
		upstream.Close()
	}
}
