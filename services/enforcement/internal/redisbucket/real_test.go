package redisbucket

import (
	"context"
	"flag"
	"math/rand/v2"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/tollgate-dev/tollgate/pkg/limit/limittest"
	"github.com/tollgate-dev/tollgate/pkg/testkit/realredis"
)

// The nightly size is 1,000,000: go test ./internal/redisbucket -run AnswersLikeTheModel -operations 1000000 -timeout 1h
var operations = flag.Int("operations", 40_000, "how many random operations the differential tests make on a real server")

// emptied gives a factory of limiters on a client whose server is emptied for each.
func emptied(rdb redis.UniversalClient, flush func(context.Context) error) limittest.Factory {
	return func(t testing.TB, clock *limittest.Clock) limittest.Subject {
		if err := flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		return onRedis(rdb, clock)
	}
}

func realServer(t *testing.T) limittest.Factory {
	rdb := redis.NewClient(&redis.Options{Addr: realredis.Start(t).Addr})
	t.Cleanup(func() { _ = rdb.Close() })
	return emptied(rdb, func(ctx context.Context) error { return rdb.FlushAll(ctx).Err() })
}

func realCluster(t *testing.T) limittest.Factory {
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: realredis.StartCluster(t).Addrs()})
	t.Cleanup(func() { _ = rdb.Close() })
	return emptied(rdb, func(ctx context.Context) error {
		return rdb.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error { return c.FlushAll(ctx).Err() })
	})
}

func TestRealRedisConforms(t *testing.T)    { limittest.Run(t, realServer(t)) }
func TestRedisClusterConforms(t *testing.T) { limittest.Run(t, realCluster(t)) }

func TestRealRedisAnswersLikeTheModel(t *testing.T) {
	limittest.Differential(t, rand.Uint64(), *operations, memory, realServer(t))
}

func TestRedisClusterAnswersLikeTheModel(t *testing.T) {
	limittest.Differential(t, rand.Uint64(), *operations/4, memory, realCluster(t))
}
