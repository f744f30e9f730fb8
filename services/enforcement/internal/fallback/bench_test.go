package fallback

import (
	"context"
	"runtime"
	"testing"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/limit"
)

// BenchmarkDegradedCheck is a check while the store is away, and what the request's entry takes until the store is back. Beside it:
// redisbucket's BenchmarkRequest.
func BenchmarkDegradedCheck(b *testing.B) {
	s := &store{Memory: limit.NewMemory(limit.MemoryOptions{})}
	l := New(s, &instances{s: s, n: 1}, Options{Most: 1 << 30})
	s.fail(down)
	ctx := context.Background()
	for !l.away() {
		_, _ = l.Status(ctx, limit.StatusRequest{Shard: shard, Scopes: wide})
	}
	roomy := scopes(1e12, 1e15, 0)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	n := 0
	for b.Loop() {
		if d, err := l.Check(ctx, request(uuid.New(), roomy, 1)); err != nil || !d.Allowed {
			b.Fatal(d, err)
		}
		n++
	}
	b.StopTimer()
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(n), "B/kept")
	runtime.KeepAlive(l)
}
