package app

import (
	"context"
	"sync"
	"testing"

	"github.com/tollgate-dev/tollgate/pkg/pgquota"
	"github.com/tollgate-dev/tollgate/pkg/redisfence"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
)

// leave has Redis know of a change as redisfence.Publish does, but loses the announcement: only the versions tell. For one name they must
// come in order.
func (b *backends) leave(ctx context.Context, fences []pgquota.Fence, err error) error {
	for _, f := range fences {
		for _, shard := range f.Shards {
			if err == nil {
				err = b.rdb.Set(ctx, redisfence.Key(shard, f.Name), redisfence.Value(f.Version), redisfence.TTL).Err()
			}
		}
		if err == nil {
			err = b.quotas.MarkFenced(ctx, []int64{f.ID})
		}
	}
	return err
}

// The key's version must be found wherever its user's org, and the org's spread, have meanwhile taken it, though every announcement is lost.
// Had the move not been published before the key's change answers, an old decision would pass in the shard that the user has left. (That a
// key's change waits for a move under way is pgquota's TestKeysChangeWaitsForItsUsers.)
func TestKeysChangeHoldsOnTheNextCheckWhileItsOwnerMoves(t *testing.T) {
	b := start(t, broker(t).Brokers())
	services := []*service{run(t, b.config()), run(t, b.config()), run(t, b.config())}
	b.user(t, "u1", "", tier.Overrides{})
	b.key(t, "k1", "u1", "", tier.Overrides{})
	var movers sync.WaitGroup
	defer movers.Wait()
	var goOn []chan struct{}
	ctx := t.Context()
	mover := func(f func(i int) ([]pgquota.Fence, error)) {
		next := make(chan struct{}, 3)
		goOn = append(goOn, next)
		movers.Go(func() {
			i := 0
			for range next {
				i++
				fences, err := f(i)
				if err := b.leave(ctx, fences, err); err != nil {
					t.Error(err)
				}
			}
		})
	}
	orgs := []string{"", "a", "b"}
	mover(func(i int) ([]pgquota.Fence, error) {
		res, err := b.quotas.PutQuota(ctx, pgquota.Change{Subject: subject.Subject{Kind: subject.User, ID: "u1"}, OrgID: &orgs[i%3], Own: unlimited(tier.Overrides{Shards: ptr(int64(1 + i%4))}), Actor: "mover"})
		return res.Fences, err
	})
	mover(func(i int) ([]pgquota.Fence, error) {
		p := tier.NoPool(orgs[1+i%2])
		p.Shards = int64(1 + i%5)
		res, err := b.quotas.PutOrg(ctx, pgquota.OrgChange{Pool: p, Actor: "mover"})
		return res.Fences, err
	})
	defer func() {
		for _, next := range goOn {
			close(next)
		}
	}()
	for i := range 100 {
		for range 3 { // as many moves at once with each change
			for _, next := range goOn {
				next <- struct{}{}
			}
		}
		most := int64(1)
		if i%2 == 0 {
			most = 1_000_000_000
		}
		res, err := b.quotas.PutQuota(ctx, pgquota.Change{Subject: subject.Subject{Kind: subject.APIKey, ID: "k1"}, Own: tier.Overrides{TPMLimit: &most}, Actor: "test"})
		if err := b.leave(ctx, res.Fences, err); err != nil {
			t.Fatal(err)
		}
		for _, s := range services {
			code, v := 503, map[string]any(nil)
			for try := 0; code == 503 && try < 50; try++ { // 503: its owner moved too often while this was being decided
				code, v = s.send("POST", "/internal/rate-limit/check", `{"api_key_id":"k1","model":"grok-2","estimated_tokens":2}`)
			}
			if code != 200 || v["quota_version"] != float64(i+2) || (v["allowed"] == true) != (most > 1) {
				t.Fatalf("change %d did not hold: %d %v", i, code, v)
			}
		}
	}
}
