package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/tollgate-dev/tollgate/pkg/client"
	"github.com/tollgate-dev/tollgate/services/e2e/internal/system"
)

const (
	users    = 200
	orgs     = 20
	callers  = 32
	patience = 5 * time.Minute // for one call, through all that happens to the services
)

// use is what a record said, and what the ledger must say.
type use struct {
	user                  string
	input, output, cached int64
}

// load is the traffic and what was answered.
type load struct {
	instances []*client.Enforcement
	target    int64

	begun    atomic.Int64
	answered atomic.Int64
	retries  atomic.Int64
	degraded atomic.Int64

	mu   sync.Mutex
	uses map[uuid.UUID]use // by event id
}

func newLoad(urls []string, target int) *load {
	l := &load{target: int64(target), uses: make(map[uuid.UUID]use, target)}
	for _, u := range urls {
		l.instances = append(l.instances, client.NewEnforcement(u, system.ServiceToken, client.WithPatience(3*time.Second)))
	}
	return l
}

// run calls until target records are answered and all harm is done.
func (l *load) run(ctx context.Context, seed uint64, harmed <-chan struct{}) error {
	g, ctx := errgroup.WithContext(ctx)
	for c := range callers {
		g.Go(func() error {
			r := rand.New(rand.NewPCG(seed, uint64(c))) //nolint:gosec // a repeatable load
			for {
				if l.begun.Add(1) > l.target {
					select {
					case <-harmed:
						return nil
					default:
					}
				}
				if err := l.one(ctx, r); err != nil {
					return err
				}
			}
		})
	}
	return g.Wait()
}

// one is one request of a user: mostly a check and a record, sometimes a record alone, sometimes the record again.
func (l *load) one(ctx context.Context, r *rand.Rand) error {
	u := use{user: fmt.Sprintf("chaos-%d", r.IntN(users)), input: 1 + r.Int64N(2000), output: r.Int64N(500)}
	u.cached = r.Int64N(u.input)
	id := uuid.Must(uuid.NewV7())
	if r.IntN(10) < 7 {
		estimate := u.input + u.output + r.Int64N(100) // never what is used, or nothing would show which of the two was billed
		d, err := until(ctx, l, r, func(ctx context.Context, e *client.Enforcement) (client.Decision, error) {
			return e.Check(ctx, client.CheckRequest{UserID: u.user, Model: "grok-2", EstimatedTokens: &estimate, RequestID: id})
		})
		if err != nil {
			return fmt.Errorf("check %s: %w", id, err)
		}
		if !d.Allowed {
			return fmt.Errorf("check %s of an unlimited user was refused: %s", id, d.Reason)
		}
		if d.Degraded {
			l.degraded.Add(1)
		}
	}
	again := 1
	if r.IntN(20) == 0 {
		again = 2
	}
	for range again {
		receipt, err := until(ctx, l, r, func(ctx context.Context, e *client.Enforcement) (client.Receipt, error) {
			return e.Record(ctx, client.RecordRequest{UserID: u.user, RequestID: id, Model: "grok-2", InputTokens: u.input, OutputTokens: u.output,
				CachedInputTokens: u.cached, LatencyMS: 5, Outcome: "completed"})
		})
		if err != nil {
			return fmt.Errorf("record %s: %w", id, err)
		}
		l.mu.Lock()
		l.uses[receipt.EventID] = u
		l.mu.Unlock()
	}
	l.answered.Add(1)
	return nil
}

// until calls one instance after the other until one answers.
func until[T any](ctx context.Context, l *load, r *rand.Rand, call func(context.Context, *client.Enforcement) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for n := r.IntN(len(l.instances)); ; n++ {
		attempt, cancel := context.WithTimeout(ctx, 10*time.Second)
		v, err := call(attempt, l.instances[n%len(l.instances)])
		cancel()
		if err == nil {
			return v, nil
		}
		if !client.Unavailable(err) || ctx.Err() != nil {
			return v, err
		}
		l.retries.Add(1)
		select {
		case <-time.After(20*time.Millisecond + time.Duration(r.IntN(80))*time.Millisecond):
		case <-ctx.Done():
			return v, err
		}
	}
}
