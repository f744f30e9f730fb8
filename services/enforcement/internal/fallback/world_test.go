package fallback

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/subject"
)

var (
	user    = subject.Subject{Kind: subject.User, ID: "u1"}
	shard   = subject.Shard("", user)
	errDown = errors.New("connection refused")
)

// fault is what befalls calls to the store.
type fault int

const (
	none      fault = iota
	down            // nothing is done, an error at once
	deaf            // nothing is done, and nothing is answered
	forgetful       // all is done, and nothing is answered
)

// store is a limit.Memory that fails as told.
type store struct {
	*limit.Memory
	mu      sync.Mutex
	fault   fault
	calls   int
	settles map[uuid.UUID]int // how many met an open or unknown reservation
	plain   bool              // who asks spreads requests over shards himself
}

func (s *store) Carry(context.Context, limit.CarryRequest) error { return nil }

func (s *store) Carried(_ context.Context, rs []limit.CarryRequest) ([]bool, error) {
	return make([]bool, len(rs)), nil
}

func (s *store) fail(f fault) { s.mu.Lock(); defer s.mu.Unlock(); s.fault = f }

func (s *store) called() int { s.mu.Lock(); defer s.mu.Unlock(); return s.calls }

func call[T any](ctx context.Context, s *store, do func() (T, error)) (out T, err error) {
	s.mu.Lock()
	f := s.fault
	s.calls++
	s.mu.Unlock()
	if f == none || f == forgetful {
		out, err = do()
	}
	switch f {
	case down:
		return out, errDown
	case deaf, forgetful:
		<-ctx.Done()
		return out, ctx.Err()
	}
	return out, err
}

// spreader finds requests whose payer has moved.
func (s *store) spreader() limit.Limiter {
	if s.plain {
		return s.Memory
	}
	return limit.Spreader{Lender: s.Memory}
}

func (s *store) Check(ctx context.Context, r limit.CheckRequest) (limit.Decision, error) {
	return call(ctx, s, func() (limit.Decision, error) { return s.spreader().Check(ctx, r) })
}

func (s *store) Settle(ctx context.Context, r limit.SettleRequest) (limit.Settlement, error) {
	return call(ctx, s, func() (limit.Settlement, error) {
		out, err := s.spreader().Settle(ctx, r)
		if err == nil && out.Status != limit.AlreadySettled {
			s.mu.Lock()
			if s.settles != nil {
				s.settles[r.RequestID]++
			}
			s.mu.Unlock()
		}
		return out, err
	})
}

func (s *store) Consume(ctx context.Context, r limit.ConsumeRequest) (limit.Consumption, error) {
	return call(ctx, s, func() (limit.Consumption, error) { return s.spreader().Consume(ctx, r) })
}

func (s *store) Cancel(ctx context.Context, r limit.CancelRequest) (bool, error) {
	return call(ctx, s, func() (bool, error) { return s.spreader().Cancel(ctx, r) })
}

func (s *store) MarkEmitted(ctx context.Context, shard int, sub subject.Subject, id uuid.UUID) error {
	_, err := call(ctx, s, func() (struct{}, error) { return struct{}{}, s.Memory.MarkEmitted(ctx, shard, sub, id) })
	return err
}

func (s *store) Due(ctx context.Context, r limit.DueRequest) ([]limit.Due, error) {
	return call(ctx, s, func() ([]limit.Due, error) { return s.Memory.Due(ctx, r) })
}

func (s *store) Status(ctx context.Context, r limit.StatusRequest) (limit.Status, error) {
	return call(ctx, s, func() (limit.Status, error) { return s.Memory.Status(ctx, r) })
}

func (s *store) DueShards(ctx context.Context) ([]int, error) {
	return call(ctx, s, func() ([]int, error) { return []int{shard}, nil })
}

// instances counts as told, over the same store.
type instances struct {
	s      *store
	n      int
	others []string
}

func (i *instances) Beat(ctx context.Context) (Live, error) {
	return call(ctx, i.s, func() (Live, error) {
		i.s.mu.Lock()
		defer i.s.mu.Unlock()
		return Live{i.n, i.others}, nil
	})
}

func (i *instances) Leave(context.Context) error { return nil }

// world is one instance over a store that fails as told. Inside testing/synctest its time is the bubble's.
type world struct {
	*Limiter
	t     *testing.T
	store *store
	began time.Time
	reg   *prometheus.Registry
	logs  *lines
}

// start runs a Limiter, one of so many instances, until the test ends.
func start(t *testing.T, n int, o Options) *world {
	t.Helper()
	s := &store{Memory: limit.NewMemory(limit.MemoryOptions{}), settles: map[uuid.UUID]int{}}
	return startOn(t, s, &instances{s: s, n: n}, o)
}

func startOn(t *testing.T, s *store, i *instances, o Options) *world {
	t.Helper()
	w := &world{t: t, began: time.Now(), store: s, reg: prometheus.NewRegistry(), logs: &lines{}}
	o.Registry, o.Log = w.reg, slog.New(slog.NewTextHandler(w.logs, nil))
	w.Limiter = New(s, i, o)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = w.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	time.Sleep(time.Millisecond) // the first beat
	return w
}

// lines counts log lines that hold a text.
type lines struct {
	mu   sync.Mutex
	text []string
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, string(b))
	return len(b), nil
}

func scopes(rpm, tpm, slots int64) []limit.Scope {
	return []limit.Scope{{Kind: limit.ScopeUser, Name: user.String(), Slots: slots, Limits: []limit.Limit{
		{Counted: limit.Requests, Capacity: rpm, Window: time.Minute}, {Counted: limit.Tokens, Capacity: tpm, Window: 24 * time.Hour}}}}
}

// day is a day's capacity, small enough that hardly anything drains while a test runs: a token every 43 s.
const day = 2000

var wide = scopes(1000, day, 0)

func request(id uuid.UUID, sc []limit.Scope, tokens int64) limit.CheckRequest {
	return limit.CheckRequest{Shard: shard, Subject: user, RequestID: id, Scopes: sc, Cost: limit.Usage(tokens, 0), Meta: "check"}
}

func (w *world) check(id uuid.UUID, sc []limit.Scope, tokens int64) limit.Decision {
	w.t.Helper()
	d, err := w.Check(w.t.Context(), request(id, sc, tokens))
	if err != nil {
		w.t.Fatal(err)
	}
	return d
}

// record does what the engine does: settle, make the event durable, note it.
func (w *world) record(id uuid.UUID, tokens int64) limit.Settlement {
	w.t.Helper()
	s := w.settle(id, tokens)
	w.emitted(id)
	return s
}

func (w *world) settle(id uuid.UUID, tokens int64) limit.Settlement {
	w.t.Helper()
	s, err := w.Settle(w.t.Context(), limit.SettleRequest{Shard: shard, Subject: user, RequestID: id, Scopes: wide, Actual: limit.Usage(tokens, 0), Meta: "settle"})
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *world) emitted(id uuid.UUID) {
	w.t.Helper()
	if err := w.MarkEmitted(w.t.Context(), shard, user, id); err != nil {
		w.t.Fatal(err)
	}
}

// trips has the store fail until the breaker opens.
func (w *world) trips(f fault) {
	w.t.Helper()
	w.store.fail(f)
	for range trip {
		if _, err := w.Status(w.t.Context(), limit.StatusRequest{Shard: shard, Scopes: wide}); err != nil {
			w.t.Fatal(err)
		}
	}
	if !w.away() {
		w.t.Fatal("the breaker is closed")
	}
}

// returns has the store answer, and waits until it knows everything.
func (w *world) returns() {
	w.t.Helper()
	w.store.fail(none)
	for range 1000 {
		time.Sleep(10 * time.Millisecond)
		w.mu.Lock()
		left := w.book.pending() + len(w.book.queue)
		w.mu.Unlock()
		if !w.away() && left == 0 {
			return
		}
	}
	w.t.Fatalf("10 s after its return the store has still not been told of all")
}

// knows checks what the store has counted of the day's tokens.
func (w *world) knows(want int64) {
	w.t.Helper()
	if got, drained := w.used(), int64(time.Since(w.began)*day/(24*time.Hour))+1; got > want || got < want-drained {
		w.t.Errorf("the store knows of %d tokens, want %d (of which %d may have drained)", got, want, drained)
	}
}

func (w *world) used() int64 {
	w.t.Helper()
	s, err := w.store.Memory.Status(w.t.Context(), limit.StatusRequest{Shard: shard, Scopes: wide})
	if err != nil {
		w.t.Fatal(err)
	}
	return day - s.Scopes[0].Limits[1].Remaining
}

// inFlight is how many reservations the store holds open.
func (w *world) inFlight() int64 {
	w.t.Helper()
	s, err := w.store.Memory.Status(w.t.Context(), limit.StatusRequest{Shard: shard, Scopes: wide})
	if err != nil {
		w.t.Fatal(err)
	}
	return s.Scopes[0].InUse
}

func (w *world) metric(name string) float64 {
	w.t.Helper()
	families, err := w.reg.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue() + f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	w.t.Fatalf("no metric %s", name)
	return 0
}

func (w *world) decisions(policy, result string) float64 {
	return testutil.ToFloat64(w.m.decisions.WithLabelValues(policy, result))
}
