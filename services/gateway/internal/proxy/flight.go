package proxy

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/client"
	"github.com/tollgate-dev/tollgate/services/gateway/internal/body"
	"github.com/tollgate-dev/tollgate/services/gateway/internal/tokens"
)

// flight is a granted request until it is settled.
type flight struct {
	s    *Server
	x    *exchange
	kind tokens.Kind
	req  *body.Request
	res  *client.Reservation
	ctx  context.Context //nolint:containedctx // of the client's request, for the time that it is served

	input   int64 // counted
	output  int64 // reserved
	choices int64 // answers that are asked for, over all prompts
	bounded bool  // the request itself bounds its output

	begun  bool // the server has begun to work on it, as far as is known
	used   meter
	looked int64       // the meter's progress when the tokens were last counted
	drawn  int64       // tokens that were drawn from the reservation, and beyond
	over   atomic.Bool // the lease is gone or nothing more is sold

	once sync.Once
}

const (
	// drawEvery is how many tokens a stream without a bound may produce beyond what was drawn.
	drawEvery = 64
	// drawWithin bounds a draw. One that fails costs nothing: the settlement takes what was produced.
	drawWithin = time.Second
	// longToken is a token's text in bytes that no answer has on average: below, a bounded stream's tokens need not be counted while it runs.
	longToken = 16
	// leaseParts is into how many parts a lease is cut; it is renewed after each.
	leaseParts = 3
	// unknownLease is what a lease is taken for that the answers do not tell.
	unknownLease = 10 * time.Second
)

// mayGoOn draws for what was produced where the reservation was a guess that is nearly used up, or a bound that the server does not keep to.
func (f *flight) mayGoOn() bool {
	if f.over.Load() {
		return false
	}
	u := &f.used
	if u.progress()-f.looked < drawEvery/2 || f.bounded && max(u.chunks, u.output.n) <= f.output && u.size <= longToken*f.output {
		return true
	}
	f.looked = u.progress()
	n, _ := u.produced()
	if n+drawEvery <= f.output || f.bounded && n <= f.output || n-f.drawn < drawEvery/2 {
		return true
	}
	ctx, cancel := context.WithTimeout(f.ctx, drawWithin)
	defer cancel()
	d, err := f.res.Consume(ctx, n-f.drawn)
	if err != nil {
		if f.ctx.Err() == nil {
			f.x.log.WarnContext(f.ctx, "a stream's tokens could not be drawn; they are settled at its end", "err", err)
		}
		return true
	}
	f.drawn = n
	return d.Allowed
}

// renewIn is when a lease is to be renewed that ends in so many milliseconds: its length is enforcement's to say.
func renewIn(leaseMS int64) time.Duration {
	if leaseMS <= 0 {
		return unknownLease / leaseParts
	}
	return time.Duration(leaseMS) * time.Millisecond / leaseParts
}

// keep renews the lease until stop is called.
func (f *flight) keep() (stop func()) {
	every := renewIn(f.res.Decision.LeaseMS)
	var mu sync.Mutex
	var timer *time.Timer
	ended := false
	renew := func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(f.ctx), min(every, 5*time.Second))
		d, err := f.res.Consume(ctx, 0)
		cancel()
		mu.Lock()
		defer mu.Unlock()
		switch {
		case ended:
		case err != nil:
			f.x.log.WarnContext(f.ctx, "a lease could not be renewed; trying again", "err", err)
			timer.Reset(every / leaseParts)
		case !d.Allowed:
			f.over.Store(true)
		default:
			every = renewIn(d.LeaseMS)
			timer.Reset(every)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(every, renew)
	return func() {
		mu.Lock()
		defer mu.Unlock()
		ended = true
		timer.Stop()
	}
}

// settle ends the reservation, once. It returns when that is durable where the client's next request may need the slot, else at once.
func (f *flight) settle(outcome string) {
	f.once.Do(func() {
		if f.x.outcome = outcome; f.res == nil {
			return
		}
		u, input, output := f.usage()
		u.Outcome = outcome
		label := f.s.m.label(f.res.Decision.Model)
		f.s.m.tokens.WithLabelValues(label, "input", input).Add(float64(u.InputTokens))
		f.s.m.tokens.WithLabelValues(label, "output", output).Add(float64(u.OutputTokens))
		u.Latency = time.Since(f.x.arrived)
		done, ctx := make(chan struct{}), context.WithoutCancel(f.ctx)
		f.s.pending.Go(func() {
			defer close(done)
			if _, err := f.res.Settle(ctx, u); err != nil {
				f.s.m.unsettled.Inc()
				f.x.log.ErrorContext(ctx, "a request could not be settled; what was reserved is billed when its lease ends", "subject", f.x.who.Subject.String(),
					"input_tokens", u.InputTokens, "output_tokens", u.OutputTokens, "outcome", outcome, "err", err)
			}
		})
		if roomy(f.res.Decision) {
			return
		}
		wait := time.NewTimer(f.s.o.SettleFirst)
		defer wait.Stop()
		select {
		case <-done:
		case <-wait.C:
		}
	})
}

// The sources of figures, in metrics.
const (
	fromUpstream = "upstream"
	fromCounting = "counted"
)

// usage is what is billed, and where its figures are from. Of a server that has not begun, as far as is known, only what it told itself is.
func (f *flight) usage() (u client.Usage, input, output string) {
	m := &f.used
	if !f.begun && !m.input.ok && !m.output.ok {
		return u, fromCounting, fromCounting
	}
	input, output = fromUpstream, fromUpstream
	if m.input.ok && (m.input.n > 0 || f.input == 0) {
		u.InputTokens, u.CachedInputTokens = m.input.n, min(m.cached.n, m.input.n)
	} else {
		u.InputTokens, input, u.Estimated = f.input, fromCounting, true
	}
	if f.kind == tokens.Embedding {
		return u, input, output
	}
	n, told := m.produced()
	if u.OutputTokens = n; !told {
		output, u.Estimated = fromCounting, true
	}
	return u, input, output
}

// roomy tells that so many slots were free at the check that the client's next requests need not wait for this one's.
func roomy(d client.Decision) bool {
	most, left := d.Limit["concurrent"], d.Remaining["concurrent"]
	return most == nil || left == nil || *left >= 8 && *left >= *most/2
}

// failedBy settles a request that has broken off and says why it did.
func (f *flight) failedBy(err error) error {
	if f.ctx.Err() != nil { // the client has gone; whatever failed, failed by that
		f.settle(outcomeCancelled)
		return nil //nolint:nilerr // nobody is left to be told
	}
	f.settle(outcomeFailed)
	return err
}

// alive gives the client its time to read the next bytes, or a sixteenth less: not every chunk of a stream needs a deadline of its own.
func (s *Server) alive(x *exchange) {
	now := time.Now()
	if now.Sub(x.alive) < s.o.Stall/16 {
		return
	}
	x.alive = now
	_ = http.NewResponseController(x.w).SetWriteDeadline(now.Add(s.o.Stall)) // without deadlines the server's own apply
}
