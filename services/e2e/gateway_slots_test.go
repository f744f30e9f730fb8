package e2e

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// B21: a client that leaves gives its slot back, whenever and however it leaves.
func TestB21ALeavingClientFreesItsSlot(t *testing.T) {
	p, e, q := services(t)
	user, key := keyed(t, q, limits{concurrent: 2})
	slow := hello + `,"stream":true,"x_sim":{"tokens":1000,"pace_ms":20}}`
	h2 := &http.Transport{Protocols: new(http.Protocols)}
	h2.Protocols.SetUnencryptedHTTP2(true)
	defer h2.CloseIdleConnections()
	leave := map[string]func(t *testing.T){
		"after two chunks": func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			resp := ask(ctx, t, p.system.GatewayURL, key.Secret, chatPath, slow, nil)
			readEvents(t, bufio.NewReader(resp.Body), 2)
			cancel()
		},
		"before the first byte": func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
			defer cancel()
			req, _ := http.NewRequestWithContext(ctx, http.MethodPost, p.system.GatewayURL+"/v1"+chatPath, strings.NewReader(hello+`,"stream":true,"x_sim":{"delay_ms":60000}}`))
			req.Header.Set("Authorization", "Bearer "+key.Secret)
			if resp, err := http.DefaultClient.Do(req); err == nil {
				_ = resp.Body.Close()
				t.Error("it was answered")
			}
		},
		"at once": func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Millisecond)
			defer cancel()
			req, _ := http.NewRequestWithContext(ctx, http.MethodPost, p.system.GatewayURL+"/v1"+chatPath, strings.NewReader(slow))
			req.Header.Set("Authorization", "Bearer "+key.Secret)
			if resp, err := http.DefaultClient.Do(req); err == nil {
				_ = resp.Body.Close()
			}
		},
		"by RST_STREAM": func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			req, _ := http.NewRequestWithContext(ctx, http.MethodPost, p.system.GatewayURL+"/v1"+chatPath, strings.NewReader(slow))
			req.Header.Set("Authorization", "Bearer "+key.Secret)
			resp, err := h2.RoundTrip(req)
			if err != nil || resp.ProtoMajor != 2 {
				t.Fatal(resp, err)
			}
			readEvents(t, bufio.NewReader(resp.Body), 2)
			_ = resp.Body.Close()
		},
	}
	for name, f := range leave {
		t.Run(name, func(t *testing.T) {
			for range 5 {
				f(t)
				if took := awaitFree(t, e, user); took > 2*time.Second {
					t.Errorf("the slot was free after %s", took)
				}
			}
		})
	}
	if n := p.upstream.Open(); n != 0 {
		time.Sleep(time.Second)
		if n = p.upstream.Open(); n != 0 {
			t.Errorf("the server still answers %d requests of clients that have left", n)
		}
	}
	for range 2 {
		if resp := ask(t.Context(), t, p.system.GatewayURL, key.Secret, chatPath, slow, nil); resp.StatusCode != http.StatusOK {
			t.Errorf("a slot is lost: %s", resp.Status)
		}
	}
	resp, body := answered(t, p.system.GatewayURL, key.Secret, chatPath, slow)
	kind, code, _, _ := errorOf(t, body)
	if resp.StatusCode != http.StatusTooManyRequests || kind != "rate_limit_exceeded" || code != "rate_limit_exceeded" || resp.Header.Get("Retry-After") != "1" ||
		resp.Header.Get("Retry-After-Ms") != "1000" || resp.Header.Get("X-Ratelimit-Remaining-Concurrent") != "0" {
		t.Errorf("a third: %s %v %s", resp.Status, resp.Header, body)
	}
}

var leaseOfB23 = flag.Duration("gateway.lease", 3*time.Second, "the lease in the test of case B23, whose stream lasts for two of it and a third; the case has 30s")

// B23: a lease is renewed for as long as its stream lasts. How long one is, only enforcement is told.
func TestB23TheSlotIsHeldForAsLongAsTheStreamLasts(t *testing.T) {
	p, _, q := services(t)
	base, e, _ := p.pair(t, "TOLLGATE_LEASE="+leaseOfB23.String())
	user, key := keyed(t, q, limits{concurrent: 1})
	every := *leaseOfB23 / 6
	begin := time.Now()
	stream := ask(t.Context(), t, base, key.Secret, chatPath, fmt.Sprintf(`%s,"stream":true,"max_tokens":15,"x_sim":{"pace_ms":%d}}`, hello, every.Milliseconds()), nil)
	ended := make(chan string, 1)
	go func() {
		b := new(strings.Builder)
		_, _ = bufio.NewReader(stream.Body).WriteTo(b)
		ended <- b.String()
	}()
	probes := 0
	over := func(body string) {
		if ev := events(body); ev[len(ev)-1] != "[DONE]" {
			t.Errorf("%s", body)
		}
	}
	for done := false; !done; {
		select {
		case body := <-ended:
			over(body)
			done = true
		case <-time.After(every):
			probes++
			if resp, _ := answered(t, base, key.Secret, chatPath, hello+`,"max_tokens":1}`); resp.StatusCode == http.StatusTooManyRequests {
				continue
			}
			select { // one that comes as the stream ends is admitted rightly
			case body := <-ended:
				over(body)
				done = true
			case <-time.After(every / 2):
				t.Error("admitted beside the stream")
			}
		}
	}
	if took := time.Since(begin); probes < 10 || took < *leaseOfB23*2 {
		t.Errorf("%d probes in %s", probes, took)
	}
	codes := make(chan int, 2)
	for range 2 {
		go func() {
			resp := ask(t.Context(), t, base, key.Secret, chatPath, hello+`,"max_tokens":1,"x_sim":{"delay_ms":500}}`, nil)
			codes <- resp.StatusCode
		}()
	}
	if a, b := <-codes, <-codes; a+b != http.StatusOK+http.StatusTooManyRequests {
		t.Errorf("two at once after the stream: %d and %d", a, b)
	}
	awaitFree(t, e, user)
}

// B28: what was produced for a client that left is billed.
func TestB28WhatWasProducedForALeavingClientIsBilled(t *testing.T) {
	p, e, q := services(t)
	user, key := keyed(t, q, limits{tpd: 1_000_000, concurrent: 1})
	ctx, cancel := context.WithCancel(t.Context())
	resp := ask(ctx, t, p.system.GatewayURL, key.Secret, chatPath, hello+`,"stream":true,"max_tokens":1000,"x_sim":{"tokens":1000,"stall_after":40}}`, nil)
	readEvents(t, bufio.NewReader(resp.Body), 40)
	cancel()
	if took := awaitFree(t, e, user); took > 2*time.Second {
		t.Errorf("the slot was free after %s", took)
	}
	u := p.usageOf(t, requestID(t, resp))
	if u.Outcome != "cancelled" || !u.Estimated || u.Output < 40 || u.Output > 160 || u.Input < 5 || u.Input > 60 {
		t.Errorf("%+v", u)
	}
	if left := remaining(t, status(t, e, user), "tokens_1d"); left < 1_000_000-u.Input-u.Output || left > 1_000_000-u.Input-u.Output+50 {
		t.Errorf("%d tokens are left after %d and %d", left, u.Input, u.Output)
	}
}
