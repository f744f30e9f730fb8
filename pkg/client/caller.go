package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/problem"
)

// maxAnswer bounds how much of an answer is read, in bytes.
const maxAnswer = 8 << 20

// Option changes how a client calls.
type Option func(*caller)

// WithHTTPClient replaces the HTTP client, for tests or for another transport.
func WithHTTPClient(c *http.Client) Option { return func(k *caller) { k.http = c } }

// WithConnections keeps up to n connections open to the service between calls (64 by default): as many as calls run at once.
func WithConnections(n int) Option { return func(k *caller) { k.connections = n } }

// WithPatience is how long Record and CheckPatiently keep trying while the service is away (30 s by default).
func WithPatience(d time.Duration) Option { return func(k *caller) { k.patience = d } }

// WithCheckBudget is how long Reserve waits for a decision, its repeats included (1 s by default).
func WithCheckBudget(d time.Duration) Option { return func(k *caller) { k.budget = d } }

// WithFailOpen lets Reserve admit requests while no decision can be had: their reservations are Unchecked, and what they use is
// recorded and billed as that of any other. Without it Reserve fails closed, with the error.
func WithFailOpen() Option { return func(k *caller) { k.failOpen = true } }

// WithRetryHook is told why, each time a call is about to be sent again. It is called from any goroutine.
func WithRetryHook(f func(err error)) Option { return func(k *caller) { k.onRetry = f } }

// WithAnswerHook is given the body of each call that succeeded, as it came and before it is decoded: for who passes answers on. It is called
// from any goroutine.
func WithAnswerHook(f func(body []byte)) Option { return func(k *caller) { k.onAnswer = f } }

// caller sends JSON to one service and reads JSON or a problem.
type caller struct {
	base        string
	token       string
	http        *http.Client
	connections int
	patience    time.Duration
	budget      time.Duration
	failOpen    bool
	backoff     func(attempt int) time.Duration
	onRetry     func(error)
	onAnswer    func([]byte)
}

func newCaller(base, token string, opts []Option) *caller {
	k := &caller{base: strings.TrimRight(base, "/"), token: token, connections: 64, patience: 30 * time.Second, budget: time.Second, backoff: backoff, onRetry: func(error) {}, onAnswer: func([]byte) {}}
	for _, o := range opts {
		o(k)
	}
	if k.http == nil {
		k.http = &http.Client{Transport: transport(k.connections)}
	}
	return k
}

// transport keeps connections: net/http's default of two idle ones per host would open a new one for nearly every call.
func transport(connections int) *http.Transport {
	return &http.Transport{
		DialContext:           (&net.Dialer{Timeout: 2 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		MaxIdleConns:          connections,
		MaxIdleConnsPerHost:   connections,
		IdleConnTimeout:       90 * time.Second,
		TLSHandshakeTimeout:   5 * time.Second,
		ResponseHeaderTimeout: 30 * time.Second,
		ForceAttemptHTTP2:     true,
	}
}

// close drops kept connections.
func (k *caller) close() { k.http.CloseIdleConnections() }

// call sends in (nil: no body) and decodes the answer into out (nil: dropped).
func (k *caller) call(ctx context.Context, method, path string, header http.Header, in, out any) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("%s %s: encode: %w", method, path, err)
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, k.base+path, body)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	for name, values := range header {
		req.Header[name] = values
	}
	req.Header.Set("Authorization", "Bearer "+k.token)
	req.Header.Set("Accept", "application/json")
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	// An empty list is never sent; it tells net/http that any call may go out again when a kept connection was dead. Not one that is guarded by a
	// version: the repeat would meet what the first has done, and tell the caller that somebody else was faster.
	if len(req.Header["Idempotency-Key"]) == 0 && len(req.Header["If-Match"]) == 0 {
		req.Header["Idempotency-Key"] = nil
	}
	resp, err := k.http.Do(req)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("%s %s: read the answer: %w", method, path, err)
	}
	if resp.StatusCode/100 != 2 {
		return asProblem(resp, answer)
	}
	k.onAnswer(answer)
	if out != nil {
		if err := json.Unmarshal(answer, out); err != nil {
			return fmt.Errorf("%s %s: decode the answer: %w", method, path, err)
		}
	}
	return nil
}

// asProblem reads an RFC 9457 document; an answer that is none (from a proxy between us, say) becomes one with the text as detail.
func asProblem(resp *http.Response, body []byte) error {
	var p problem.Problem
	if strings.HasPrefix(resp.Header.Get("Content-Type"), problem.ContentType) && json.Unmarshal(body, &p) == nil && p.Code != "" {
		p.Status = resp.StatusCode
		return &p
	}
	code := problem.CodeInternal
	if resp.StatusCode == http.StatusServiceUnavailable || resp.StatusCode == http.StatusBadGateway || resp.StatusCode == http.StatusGatewayTimeout {
		code = problem.CodeUnavailable
	}
	return problem.New(resp.StatusCode, code, fmt.Sprintf("%s: %s", resp.Status, bytes.TrimSpace(body[:min(len(body), 200)])))
}

// Unavailable reports whether the same call may succeed later: the service was unreachable or said that it is unavailable. Whoever sends
// it again uses the same request id.
func Unavailable(err error) bool {
	var p *problem.Problem
	if errors.As(err, &p) {
		return p.Code == problem.CodeUnavailable || p.Status == http.StatusTooManyRequests
	}
	return err != nil && !errors.Is(err, context.Canceled)
}
