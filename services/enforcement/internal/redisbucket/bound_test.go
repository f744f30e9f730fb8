package redisbucket

import (
	"flag"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/testkit/realredis"
)

var boundFor = flag.Duration("bound-for", 2*time.Second, "how long the bound is tried at least")

// 64 callers over three instances, for as long as -bound-for says; 20 s is the nightly size.
func TestConcurrentChecksSellTheBoundAndNotOneMore(t *testing.T) {
	for name, shards := range map[string]int{"one shard": 1, "eight shards": 8} {
		t.Run(name, func(t *testing.T) {
			addr := realredis.Start(t).Addr
			sp := limit.Spread{First: 5, Shards: shards}
			scope := limit.Scope{Kind: limit.ScopeUser, Name: "user:u1", Split: true, Limits: []limit.Limit{
				{Counted: limit.Requests, Capacity: 3001, Window: time.Minute}, {Counted: limit.Tokens, Capacity: 1_000_000_007, Window: time.Minute}}}
			var granted, asked atomic.Int64
			var mu sync.Mutex
			var first, last time.Time
			ctx, began := t.Context(), time.Now()
			enough := func() bool { // asked for three times, whatever the machine: else it may not be reached
				ran := time.Since(began)
				return ran >= *boundFor && asked.Load() >= 3*(3001+3001*ran.Milliseconds()/time.Minute.Milliseconds())
			}
			var wg sync.WaitGroup
			for instance := range 3 {
				rdb := redis.NewClient(&redis.Options{Addr: addr, PoolSize: 32})
				t.Cleanup(func() { _ = rdb.Close() })
				l := limit.Spreader{Lender: New(rdb, Options{})}
				for range [3]int{22, 21, 21}[instance] {
					wg.Go(func() {
						for !enough() {
							id := uuid.New()
							d, err := l.Check(ctx, limit.CheckRequest{Shard: sp.Home(id.String()), Spread: sp, Subject: u1, RequestID: id,
								Scopes: []limit.Scope{scope}, Cost: limit.Usage(10, 0), Fresh: true})
							if err != nil {
								t.Error(err)
								return
							}
							asked.Add(1)
							mu.Lock()
							if first.IsZero() || d.At.Before(first) {
								first = d.At
							}
							if d.Allowed {
								granted.Add(1)
								if d.At.After(last) {
									last = d.At
								}
							}
							mu.Unlock()
						}
					})
				}
			}
			wg.Wait()
			bound := 3001 + 3001*last.Sub(first).Milliseconds()/time.Minute.Milliseconds()
			share := float64(granted.Load()) / float64(bound)
			t.Logf("%d granted of %d asked in %s: %.4f of the bound of %d", granted.Load(), asked.Load(), last.Sub(first), share, bound)
			if granted.Load() > bound {
				t.Errorf("%d granted, the bound is %d", granted.Load(), bound)
			}
			if share < 0.99 {
				t.Errorf("only %.4f of the bound was granted", share)
			}
		})
	}
}
