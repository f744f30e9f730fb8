package redisbucket

import (
	"context"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/testkit/realredis"
)

// BenchmarkRequest is the limiter's whole part in one request: check, settle, note that its event is durable.
func BenchmarkRequest(b *testing.B) {
	b.Run("real", func(b *testing.B) { benchmarkRequest(b, realredis.Start(b).Addr) })
	b.Run("embedded", func(b *testing.B) { benchmarkRequest(b, miniredis.RunT(b).Addr()) })
}

func benchmarkRequest(b *testing.B, addr string) {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	l, ctx := New(rdb, Options{}), context.Background()
	u := subject.Subject{Kind: subject.User, ID: "u1"}
	shard := subject.Shard("", u)
	scopes := []limit.Scope{{Kind: limit.ScopeUser, Name: u.String(), Slots: 50, Limits: []limit.Limit{
		{Counted: limit.Requests, Capacity: 1e9, Window: time.Minute}, {Counted: limit.Tokens, Capacity: 1e12, Window: time.Minute},
		{Counted: limit.Tokens, Capacity: 1e12, Window: 24 * time.Hour}}}}
	for b.Loop() {
		id := uuid.New()
		if d, err := l.Check(ctx, limit.CheckRequest{Shard: shard, Subject: u, RequestID: id, Scopes: scopes, Cost: limit.Usage(100, 50)}); err != nil || !d.Allowed {
			b.Fatal(d, err)
		}
		if _, err := l.Settle(ctx, limit.SettleRequest{Shard: shard, Subject: u, RequestID: id, Scopes: scopes, Actual: limit.Usage(100, 20)}); err != nil {
			b.Fatal(err)
		}
		if err := l.MarkEmitted(ctx, shard, u, id); err != nil {
			b.Fatal(err)
		}
	}
}
