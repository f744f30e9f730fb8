package redisbucket

import (
	"context"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/limit/limittest"
	"github.com/tollgate-dev/tollgate/pkg/redisfence"
)

func onRedis(rdb redis.UniversalClient, clock *limittest.Clock) limittest.Subject {
	return limittest.Subject{Limiter: New(rdb, Options{Now: clock.Now}), Publish: func(ctx context.Context, shard int, name string, version int64) error {
		return rdb.Set(ctx, redisfence.Key(shard, name), redisfence.Value(version), redisfence.TTL).Err()
	}}
}

func mini(t testing.TB, clock *limittest.Clock) limittest.Subject {
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t.(*testing.T)).Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	return onRedis(rdb, clock)
}

func memory(_ testing.TB, clock *limittest.Clock) limittest.Subject {
	m := limit.NewMemory(limit.MemoryOptions{Now: clock.Now})
	return limittest.Subject{Limiter: m, Publish: func(_ context.Context, _ int, name string, version int64) error {
		m.Publish(name, version)
		return nil
	}}
}

func TestMiniredisConforms(t *testing.T) { limittest.Run(t, mini) }

func TestMiniredisAnswersLikeTheModel(t *testing.T) {
	limittest.Differential(t, 1, 20_000, memory, mini)
}

func TestMiniredisFollowsWhoeverMoves(t *testing.T)    { limittest.RunMover(t, mini) }
func TestRealRedisFollowsWhoeverMoves(t *testing.T)    { limittest.RunMover(t, realServer(t)) }
func TestRedisClusterFollowsWhoeverMoves(t *testing.T) { limittest.RunMover(t, realCluster(t)) }
