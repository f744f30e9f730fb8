package proxy

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"

	"github.com/tollgate-dev/tollgate/services/gateway/internal/body"
)

// handedOn are the headers of a request that the inference server gets, and of its answer that the client gets. All others stay here: credentials,
// cookies, who the client says it is, and what the server tells of its own limits and insides.
var (
	handedOn   = []string{"Accept", "Accept-Language", "Content-Type", "User-Agent", "Openai-Beta", "Traceparent", "Tracestate"}
	handedBack = []string{"Content-Type", "Content-Language", "Cache-Control", "Openai-Version", "Openai-Model", "Openai-Processing-Ms", "Retry-After",
		"Retry-After-Ms", "X-Should-Retry"}
)

// usable are the statuses below 400 of answers that bear what was asked for. A redirect is not followed: where it leads is no server that was configured.
var usable = map[int]bool{http.StatusOK: true, http.StatusCreated: true, http.StatusAccepted: true, http.StatusNonAuthoritativeInfo: true}

// errIdle is the cause for which a request to the server is given up.
var errIdle = errors.New("the inference server has sent nothing for too long")

// send asks the inference server, by POST if there is a body. The answer's body is decoded: gzip, br and zstd are undone whether or not the client could.
func (s *Server) send(ctx context.Context, x *exchange, path string, req *body.Request) (*http.Response, error) {
	method := http.MethodGet
	if req != nil {
		method = http.MethodPost
	}
	out, err := http.NewRequestWithContext(ctx, method, s.o.Upstream.JoinPath(path).String(), nil)
	if err != nil {
		return nil, err
	}
	if req != nil {
		rd, n := req.Open()
		out.Body, out.ContentLength = io.NopCloser(rd), n
		out.GetBody = func() (io.ReadCloser, error) { rd, _ := req.Open(); return io.NopCloser(rd), nil }
	}
	for _, list := range [][]string{handedOn, s.o.ForwardHeaders} {
		for _, name := range list {
			if v := x.r.Header.Values(name); len(v) > 0 {
				out.Header[http.CanonicalHeaderKey(name)] = v
			}
		}
	}
	out.Header.Set("Accept-Encoding", "identity") // what it answers has to be read here
	out.Header.Set("X-Request-Id", x.id.String())
	if s.o.UpstreamKey != "" {
		out.Header.Set("Authorization", "Bearer "+s.o.UpstreamKey)
	}
	resp, err := s.o.Transport.RoundTrip(out)
	switch {
	case err == nil:
	case errors.Is(context.Cause(ctx), errIdle):
		return nil, upstreamFailed(http.StatusGatewayTimeout, "upstream_timeout", "The inference server did not answer in time.", err)
	default:
		return nil, upstreamFailed(http.StatusBadGateway, "upstream_unreachable", "The inference server could not be reached.", err)
	}
	if err := decode(resp); err != nil {
		_ = resp.Body.Close()
		return nil, upstreamFailed(http.StatusBadGateway, "upstream_encoding", "The inference server's answer can't be read.", err)
	}
	switch {
	case resp.StatusCode == http.StatusUnauthorized, resp.StatusCode == http.StatusForbidden: // of our credential; the client's is good
		_ = resp.Body.Close()
		return nil, upstreamFailed(http.StatusBadGateway, "upstream_refused", "The inference server refuses the gateway.", errors.New(resp.Status))
	case resp.StatusCode < 400 && !usable[resp.StatusCode]:
		_ = resp.Body.Close()
		return nil, upstreamFailed(http.StatusBadGateway, "upstream_status", "The inference server answered what no client can use.", errors.New(resp.Status))
	}
	return resp, nil
}

// decoded is a body with a decoder over it.
type decoded struct {
	io.Reader
	close func() error
}

func (d decoded) Close() error { return d.close() }

func decode(resp *http.Response) error {
	raw := resp.Body
	switch enc := resp.Header.Get("Content-Encoding"); enc {
	case "", "identity":
		return nil
	case "gzip", "x-gzip":
		// The header of gzip is read at once; its first bytes come with the answer's.
		z, err := gzip.NewReader(raw)
		if err != nil {
			return err
		}
		resp.Body = decoded{z, raw.Close}
	case "br":
		resp.Body = decoded{brotli.NewReader(raw), raw.Close}
	case "zstd":
		z, err := zstd.NewReader(raw, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(8<<20))
		if err != nil {
			return err
		}
		resp.Body = decoded{z, func() error { z.Close(); return raw.Close() }}
	default:
		return fmt.Errorf("content encoding %q", enc)
	}
	resp.Header.Del("Content-Encoding")
	resp.ContentLength = -1
	return nil
}

func handBack(to, from http.Header) {
	for _, name := range handedBack {
		if v := from.Values(name); len(v) > 0 {
			to[name] = v
		}
	}
}

// whole answers with all of the server's answer. Error: none that the client could still be told.
func (s *Server) whole(x *exchange, resp *http.Response, text io.Reader, size int) error {
	h := x.w.Header()
	handBack(h, resp.Header)
	h.Set("Content-Length", strconv.Itoa(size))
	if resp.StatusCode >= http.StatusBadRequest {
		x.outcome = outcomeFailed
	}
	s.alive(x)
	x.w.WriteHeader(resp.StatusCode)
	if _, err := io.Copy(x.w, text); err != nil && x.outcome == outcomeCompleted {
		x.outcome = outcomeCancelled
	}
	return nil
}
