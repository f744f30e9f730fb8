package redisinstances

import (
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/tollgate-dev/tollgate/pkg/testkit/realredis"
	"github.com/tollgate-dev/tollgate/pkg/testkit/stores"
)

func TestMain(m *testing.M) { stores.Main(m) }

func TestInstancesCountThemselvesByRedissClock(t *testing.T) {
	for name, addr := range map[string]string{"real": realredis.Start(t).Addr, "embedded": stores.Redis(t).Addr} {
		t.Run(name, func(t *testing.T) {
			rdb := redis.NewClient(&redis.Options{Addr: addr})
			defer rdb.Close()
			beat := func(name string, want int) {
				t.Helper()
				if n, _, err := New(rdb, name).Beat(t.Context()); err != nil || n != want {
					t.Errorf("%s counts %d, %v, want %d", name, n, err, want)
				}
			}
			beat("a", 1)
			beat("b", 2)
			beat("c", 3)
			beat("a", 3)
			if err := New(rdb, "b").Leave(t.Context()); err != nil {
				t.Fatal(err)
			}
			beat("a", 2)
			silent, err := rdb.Time(t.Context()).Result()
			if err != nil {
				t.Fatal(err)
			}
			if err := rdb.ZAdd(t.Context(), key, redis.Z{Score: float64(silent.UnixMilli()), Member: "c"}).Err(); err != nil {
				t.Fatal(err)
			}
			beat("a", 1)
			if ttl, err := rdb.PTTL(t.Context(), key).Result(); err != nil || ttl <= 0 || ttl > Alive {
				t.Errorf("%s, %v", ttl, err)
			}
			if Every*3 > Alive {
				t.Errorf("two lost beats are a death: every %s, alive for %s", Every, Alive)
			}
		})
	}
}

func TestInstancesLearnWhereTheOthersCanBeAsked(t *testing.T) {
	for name, addr := range map[string]string{"real": realredis.Start(t).Addr, "embedded": stores.Redis(t).Addr} {
		t.Run(name, func(t *testing.T) {
			rdb := redis.NewClient(&redis.Options{Addr: addr})
			defer rdb.Close()
			a, b := New(rdb, "a"), New(rdb, "b")
			beat := func(i *Instances, want ...string) {
				t.Helper()
				n, others, err := i.Beat(t.Context())
				if slices.Sort(others); err != nil || n != 2 && i != a || !slices.Equal(others, want) {
					t.Errorf("%d instances, others at %q, %v; want %q", n, others, err, want)
				}
			}
			beat(a)
			beat(b) // a has announced nothing yet
			a.Announce("10.0.0.1:8081")
			beat(a)
			beat(b, "10.0.0.1:8081") // and is counted once
			a.Announce("10.0.0.2:8081")
			beat(a)
			beat(b, "10.0.0.2:8081")
			if err := a.Leave(t.Context()); err != nil {
				t.Fatal(err)
			}
			if n, others, err := b.Beat(t.Context()); n != 1 || len(others) != 0 || err != nil {
				t.Errorf("%d, %q, %v", n, others, err)
			}
		})
	}
}
