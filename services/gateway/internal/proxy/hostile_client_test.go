package proxy

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/client"
	"github.com/tollgate-dev/tollgate/services/gateway/internal/identity"
)

// dial connects to the gateway's port.
func (w *world) dial() net.Conn {
	w.t.Helper()
	u, err := url.Parse(w.url)
	if err != nil {
		w.t.Fatal(err)
	}
	c, err := (&net.Dialer{}).DialContext(w.t.Context(), "tcp", u.Host)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	return c
}

// raw sends bytes and reads the one answer.
func (w *world) raw(text string) (*http.Response, string) {
	w.t.Helper()
	c := w.dial()
	if _, err := io.WriteString(c, text); err != nil {
		w.t.Fatal(err)
	}
	return w.answer(c)
}

func (w *world) answer(c net.Conn) (*http.Response, string) {
	w.t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp, string(body)
}

func post(path, headers, body string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n%s\r\n%s", path, headers, body)
}

const key = "Authorization: Bearer k1\r\n"

func TestRequestsThatTwoServersWouldReadDifferentlyAreRefusedOrSentAnew(t *testing.T) {
	body := hello + `,"max_tokens":1}`
	length := fmt.Sprintf("Content-Length: %d\r\n", len(body))
	chunks := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(body), body)
	for name, c := range map[string]struct {
		text   string
		status int
	}{
		"as it should be":            {post(chatPath, key+length, body), 200},
		"chunked":                    {post(chatPath, key+"Transfer-Encoding: chunked\r\n", chunks), 200},
		"length and chunked":         {post(chatPath, key+"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", chunks), 200},
		"two lengths":                {post(chatPath, key+length+"Content-Length: 5\r\n", body), 400},
		"signed length":              {post(chatPath, key+"Content-Length: +5\r\n", body), 400},
		"two codings":                {post(chatPath, key+"Transfer-Encoding: gzip, chunked\r\n", chunks), 501},
		"chunked twice":              {post(chatPath, key+"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", chunks), 501},
		"another coding":             {post(chatPath, key+"Transfer-Encoding: xchunked\r\n", chunks), 501},
		"a space before the colon":   {post(chatPath, key+"Transfer-Encoding : chunked\r\n", chunks), 400},
		"no host":                    {strings.Replace(post(chatPath, key+length, body), "Host: gateway\r\n", "", 1), 400},
		"two hosts":                  {post(chatPath, key+length+"Host: other\r\n", body), 400},
		"absolute form":              {post("http://other"+chatPath, key+length, body), 200},
		"a query":                    {post(chatPath+"?x=%00&model=b", key+length, body), 200},
		"escaped letters":            {post("/v1/%63hat/completions", key+length, body), 200},
		"two credentials":            {post(chatPath, key+"Authorization: Bearer k2\r\n"+length, body), 401},
		"the same credential twice":  {post(chatPath, key+key+length, body), 401},
		"two in one":                 {post(chatPath, "Authorization: Basic x, Bearer k1\r\n"+length, body), 401},
		"small letters":              {post(chatPath, "authorization: bEARER k1\r\n"+length, body), 200},
		"another scheme":             {post(chatPath, "Authorization: Basic k1\r\n"+length, body), 401},
		"no credential":              {post(chatPath, length, body), 401},
		"a credential elsewhere":     {post(chatPath+"?api_key=k1", "X-Api-Key: k1\r\nCookie: key=k1\r\n"+length, body), 401},
		"a connection's own headers": {post(chatPath, key+length+"Connection: keep-alive, X-Secret\r\nX-Secret: 1\r\nKeep-Alive: 5\r\nTe: trailers\r\nUpgrade: h2c\r\nProxy-Authorization: Basic x\r\n", body), 200},
		"empty segments":             {post("//v1/chat/completions", key+length, body), 404},
		"a way up":                   {post("/v1/../v1/chat/completions", key+length, body), 404},
		"a dot":                      {post("/v1/./chat/completions", key+length, body), 404},
		"an escaped slash":           {post("/v1/chat%2fcompletions", key+length, body), 404},
		"an escaped way up":          {post("/v1/x/%2e%2e/chat/completions", key+length, body), 404},
		"capitals":                   {post("/V1/chat/completions", key+length, body), 404},
		"a slash at the end":         {post("/v1/chat/completions/", key+length, body), 404},
		"a parameter":                {post("/v1/chat/completions;x", key+length, body), 404},
		"a zero byte":                {post("/v1/chat/completions%00", key+length, body), 404},
		"a backslash":                {post("/v1/chat\\completions", key+length, body), 404},
		"a tunnel":                   {"CONNECT other:443 HTTP/1.1\r\nHost: other:443\r\n" + key + "\r\n", 404},
		"no body":                    {post(chatPath, key+"Content-Length: 0\r\n", ""), 400},
		"something after the JSON":   {post(chatPath, key+fmt.Sprintf("Content-Length: %d\r\n", len(body)+2), body+"{}"), 400},
		"a byte order mark":          {post(chatPath, key+fmt.Sprintf("Content-Length: %d\r\n", len(body)+3), "\xef\xbb\xbf"+body), 400},
	} {
		w := newWorld(t, func(o *Options) { o.UpstreamKey = "upstream-key" })
		resp, answer := w.raw(c.text)
		served := int64(0)
		if c.status == http.StatusOK {
			served = 1
		}
		if resp.StatusCode != c.status || w.up.Served() != served {
			t.Errorf("%s: %s, %d times served, want %d\n%s", name, resp.Status, w.up.Served(), c.status, answer)
			continue
		}
		for _, a := range w.up.Answers() {
			if string(a.Body) != body || a.Path != chatPath || a.Header.Get("Authorization") != "Bearer upstream-key" {
				t.Errorf("%s: the server got %s %v %s", name, a.Path, a.Header, a.Body)
			}
			for _, h := range []string{"X-Secret", "Keep-Alive", "Te", "Upgrade", "Proxy-Authorization", "Cookie", "X-Api-Key", "Connection", "Transfer-Encoding"} {
				if a.Header.Get(h) != "" {
					t.Errorf("%s: the server got %s", name, h)
				}
			}
		}
	}
}

func TestABodyThatDoesNotComeIsGivenUp(t *testing.T) {
	for name, c := range map[string]struct {
		headers, body string
		status        int
		code          string
	}{
		"slower than may be":     {key + "Content-Length: 100\r\n", `{"mod`, 408, "body_timeout"},
		"chunked, without end":   {key + "Transfer-Encoding: chunked\r\n", "5\r\n{\"mod\r\n", 408, "body_timeout"},
		"chunked, and too large": {key + "Transfer-Encoding: chunked\r\n", strings.Repeat("400\r\n"+strings.Repeat("x", 1024)+"\r\n", 400), 413, "body_too_large"},
		"of nobody":              {"Content-Length: 100\r\n", "{", 401, "invalid_api_key"},
		"of nobody, chunked":     {"Transfer-Encoding: chunked\r\n", "5\r\n{\"mod\r\n", 401, "invalid_api_key"},
		"compressed":             {key + "Content-Encoding: gzip\r\nContent-Length: 100\r\n", "{", 415, "unsupported_media_type"},
		"too large, as it says":  {key + "Content-Length: 400000\r\n", "", 413, "body_too_large"},
	} {
		w := newWorld(t, func(o *Options) { o.BodyWait, o.MaxBody = 300*time.Millisecond, 300_000 })
		begin := time.Now()
		resp, body := w.raw(post(chatPath, c.headers, c.body))
		if resp.StatusCode != c.status || !strings.Contains(body, `"code":"`+c.code+`"`) || len(w.e.checks) != 0 || w.server.held() != 0 || time.Since(begin) > 10*time.Second {
			t.Errorf("%s: %s %s after %s, %d bytes held", name, resp.Status, body, time.Since(begin), w.server.held())
		}
	}
}

func TestABodyThatBreaksOffIsNeverServed(t *testing.T) {
	for _, headers := range []string{"Content-Length: 1000\r\n", "Transfer-Encoding: chunked\r\n"} {
		w := newWorld(t, nil)
		c := w.dial()
		_, _ = io.WriteString(c, post(chatPath, key+headers, "8\r\n{\"model\"\r\n"))
		_ = c.(*net.TCPConn).CloseWrite() //nolint:forcetypeassert // it is one
		if resp, body := w.answer(c); resp.StatusCode != http.StatusBadRequest || !strings.Contains(body, "could not be read to its end") || w.up.Served() != 0 || len(w.e.checks) != 0 {
			t.Errorf("%s: %s %s", headers, resp.Status, body)
		}
	}
}

// All callers' bodies together, and each caller's, have a bound; what a sender only says it will send holds nothing, and a body that the server has is
// forgotten though its answer goes on.
func TestTheMemoryOfAllBodiesIsBounded(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.MaxBody, o.MaxBodies = 8<<20, 20<<20 })
	w.e.check = `{"allowed":true,"model":""}`
	begin := func(who string, sent int) net.Conn {
		c := w.dial()
		go func() { // it blocks once nobody reads
			_, _ = io.WriteString(c, post(chatPath, "Authorization: Bearer "+who+"\r\nContent-Length: 8000000\r\n", hello+`,"max_tokens":1,"x":"`+strings.Repeat("x", sent)))
		}()
		return c
	}
	holds := func(want int64) {
		t.Helper()
		deadline := time.Now().Add(10 * time.Second)
		for w.server.held() != want && time.Now().Before(deadline) {
			time.Sleep(time.Millisecond)
		}
		if got := w.server.held(); got != want {
			t.Fatalf("%d bytes are held, want %d", got, want)
		}
	}
	for i := range 20 {
		begin(fmt.Sprintf("idle%d", i), 10)
	}
	holds(20 * firstRead)
	begin("k1", 1<<20)
	holds(19*firstRead + firstRead + 8_000_000)
	resp, body := w.answer(begin("k1", 1<<20))
	if resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") != "1" || resp.Header.Get("X-Ratelimit-Limit-Requests") != "40" || !strings.Contains(body, `"code":"rate_limit_exceeded"`) {
		t.Errorf("a second large one of the same: %s %s", resp.Status, body)
	}
	resp, body = w.answer(begin("k2", 1<<20))
	if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") != "1" || !strings.Contains(body, `"code":"overloaded"`) {
		t.Errorf("one more than there is room for: %s %s", resp.Status, body)
	}
	holds(20*firstRead + 8_000_000)
	if r, _ := w.ask(chatPath, hello+`,"max_tokens":1}`); r.StatusCode != http.StatusOK {
		t.Errorf("a small one: %s", r.Status)
	}
	stream := w.dial()
	text := hello + `,"stream":true,"x_sim":{"stall_after":1},"x":"` + strings.Repeat("x", 100_000) + `"}`
	_, _ = io.WriteString(stream, post(chatPath, key+fmt.Sprintf("Content-Length: %d\r\n", len(text)), text))
	resp, err := http.ReadResponse(bufio.NewReader(stream), nil)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatal(resp, err)
	}
	defer func() {
		_ = stream.Close() // first: the body's reads on to its end
		_ = resp.Body.Close()
	}()
	holds(20*firstRead + 8_000_000) // the stream's is forgotten
}

func (s *Server) held() int64 { return s.bodies.taken() }

func (r *room) taken() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all
}

// A large body reaches the server whole, whatever room it got at first.
func TestLargeBodiesArriveWhole(t *testing.T) {
	text := hello + `,"max_tokens":1,"x":"` + strings.Repeat("0123456789", 100_000) + `"}`
	for name, framed := range map[string]string{
		"length":  post(chatPath, key+fmt.Sprintf("Content-Length: %d\r\n", len(text)), text),
		"chunked": post(chatPath, key+"Transfer-Encoding: chunked\r\n", fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(text), text)),
	} {
		w := newWorld(t, nil)
		resp, body := w.raw(framed)
		a := w.up.Answers()[resp.Header.Get("X-Request-Id")]
		if resp.StatusCode != http.StatusOK || string(a.Body) != text {
			t.Errorf("%s: %s, %d bytes of %d reached the server: %.200s", name, resp.Status, len(a.Body), len(text), body)
		}
	}
}

// breaking panics after the check was answered.
type breaking struct{ Enforcement }

func (b breaking) Reserve(ctx context.Context, r client.CheckRequest) (*client.Reservation, error) {
	_, _ = b.Enforcement.Reserve(ctx, r)
	panic("a fault")
}

// unsure panics when an identity is confirmed.
type unsure struct{ everybody }

func (unsure) Confirm(context.Context, string, identity.Identity, int64) error { panic("a fault") }

func TestAPanicBesideTheDecisionHoldsNoSlot(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"in the check":       func(o *Options) { o.Enforcement = breaking{o.Enforcement} },
		"after the decision": func(o *Options) { o.Identities = unsure{} },
	} {
		w := newWorld(t, change)
		resp, _ := w.ask(chatPath, hello+`}`)
		if r := w.recorded(); resp.StatusCode != http.StatusInternalServerError || r.RequestID.String() != resp.Header.Get("X-Request-Id") || r.InputTokens+r.OutputTokens != 0 || r.Outcome != "failed" {
			t.Errorf("%s: %s, %+v", name, resp.Status, r)
		}
	}
}

// Who asks whether to send its body is told to only once it may; who is refused is told so without it.
func TestABodyIsAskedForOnlyOfWhoMaySendIt(t *testing.T) {
	body := hello + `,"max_tokens":1}`
	const expect = "Expect: 100-continue\r\n"
	length := fmt.Sprintf("Content-Length: %d\r\n", len(body))
	for name, c := range map[string]struct {
		headers string
		status  int
	}{
		"a good one":        {key + length, 100},
		"nobody":            {length, 401},
		"one too large":     {key + "Content-Length: 999999999\r\n", 413},
		"a compressed one":  {key + length + "Content-Encoding: gzip\r\n", 415},
		"one without a key": {"Authorization: Bearer \r\n" + length, 401},
	} {
		w := newWorld(t, nil)
		conn := w.dial()
		_, _ = io.WriteString(conn, post(chatPath, expect+c.headers, ""))
		in := bufio.NewReader(conn)
		first, err := in.ReadString('\n')
		if err != nil || !strings.HasPrefix(first, fmt.Sprintf("HTTP/1.1 %d ", c.status)) {
			t.Errorf("%s: %q, %v", name, first, err)
		}
		if c.status == http.StatusContinue {
			_, _ = in.ReadString('\n')
			_, _ = io.WriteString(conn, body)
			resp, err := http.ReadResponse(in, nil)
			if err != nil || resp.StatusCode != http.StatusOK {
				t.Fatal(resp, err)
			}
			_ = resp.Body.Close()
		}
	}
	w := newWorld(t, nil)
	if resp, _ := w.raw(post(chatPath, key+"Expect: 200-ok\r\n"+length, body)); resp.StatusCode != http.StatusExpectationFailed || w.up.Served() != 0 {
		t.Error(resp.Status)
	}
}

// Requests that come one right behind the other on a connection are answered in order, each by its own credential, whatever the others are.
func TestPipelinedRequestsAreAnsweredEachByItsOwn(t *testing.T) {
	w := newWorld(t, nil)
	one := func(who string, tokens int) string {
		body := fmt.Sprintf(`%s,"max_tokens":%d}`, hello, tokens)
		return post(chatPath, who+fmt.Sprintf("Content-Length: %d\r\n", len(body)), body)
	}
	conn := w.dial()
	stream := hello + `,"stream":true,"max_tokens":2}`
	go func() {
		_, _ = io.WriteString(conn, one(key, 1)+one("", 1)+one("Authorization: Bearer k2\r\n", 3)+post(chatPath, key+"Transfer-Encoding: chunked\r\n", fmt.Sprintf("%x\r\n%s\r\n0\r\nX-Api-Key: k9\r\nAuthorization: Bearer k9\r\n\r\n", len(stream), stream))+one(key, 5))
	}()
	in := bufio.NewReader(conn)
	for i, want := range []int{200, 401, 200, 200, 200} {
		resp, err := http.ReadResponse(in, nil)
		if err != nil || resp.StatusCode != want {
			t.Fatal(i, resp, err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatal(i, err)
		}
		_ = resp.Body.Close()
	}
	var who []string
	for _, c := range w.e.checks {
		who = append(who, fmt.Sprintf("%s:%d", c.APIKeyID, *c.MaxOutputTokens))
	}
	if fmt.Sprint(who) != "[k1:1 k2:3 k1:2 k1:5]" {
		t.Errorf("%v were decided", who)
	}
}

// Names of any length and any bytes are refused by name, and the answer does not repeat them.
func TestAModelsNameOfAnyBytesIsRefused(t *testing.T) {
	w := newWorld(t, nil)
	for _, name := range []string{strings.Repeat("x", 1<<20), "a\x00b", "a\\u0000b", "a\xffb", "a\\ud800b", "é", "a b", "a\\r\\nX-Y: z"} {
		resp, body := w.ask(chatPath, `{"model":"`+name+`","messages":[]}`)
		if resp.StatusCode != http.StatusBadRequest || len(body) > 1000 || !json.Valid([]byte(body)) || !strings.Contains(body, `"code":"invalid_request"`) || len(w.e.checks) != 0 {
			t.Errorf("%.40q: %s %.300s", name, resp.Status, body)
		}
	}
}
