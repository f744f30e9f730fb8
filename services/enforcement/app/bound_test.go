package app

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/pgquota"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
)

var boundFor = flag.Duration("bound-for", 2*time.Second, "how long the bound is tried at least; 20 s is the nightly size")

// asks is how often the bound is asked for, whatever the machine: else it may not be reached, and it would say nothing that it was not exceeded.
const asks = 3

// 64 callers of three instances on one subject, in one shard and over eight.
func TestConcurrentChecksOfThreeInstancesSellTheBoundAndNotOneMore(t *testing.T) {
	b := start(t, broker(t).Brokers())
	services := []*service{run(t, b.config()), run(t, b.config()), run(t, b.config())}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	defer client.CloseIdleConnections()
	const capacity = 1201
	for _, shards := range []int64{1, 8} {
		t.Run(fmt.Sprintf("%d shards", shards), func(t *testing.T) {
			user := fmt.Sprintf("u%d", shards)
			own := unlimited(tier.Overrides{RPMLimit: ptr(capacity), Shards: &shards})
			res, err := b.quotas.PutQuota(t.Context(), pgquota.Change{Subject: subject.Subject{Kind: subject.User, ID: user}, Own: own, Actor: "test"})
			b.publish(t, res.Fences, err)
			var granted, asked atomic.Int64
			var wg sync.WaitGroup
			began := time.Now()
			bound := func() int64 { return capacity + capacity*time.Since(began).Milliseconds()/time.Minute.Milliseconds() }
			for n := range 64 {
				wg.Go(func() {
					for time.Since(began) < *boundFor || asked.Load() < asks*bound() {
						r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, services[n%3].url+"/internal/rate-limit/check",
							strings.NewReader(fmt.Sprintf(`{"user_id":%q,"model":"grok-2","estimated_tokens":10}`, user)))
						if err != nil {
							t.Error(err)
							return
						}
						r.Header.Set("Authorization", "Bearer "+token)
						resp, err := client.Do(r)
						if err != nil {
							t.Error(err)
							return
						}
						var v struct{ Allowed, Degraded bool }
						err = json.NewDecoder(resp.Body).Decode(&v)
						_ = resp.Body.Close()
						if err != nil || resp.StatusCode != http.StatusOK || v.Degraded {
							t.Errorf("%d, degraded %v, %v", resp.StatusCode, v.Degraded, err)
							return
						}
						asked.Add(1)
						if v.Allowed {
							granted.Add(1)
						}
					}
				})
			}
			wg.Wait()
			most := bound()
			share := float64(granted.Load()) / float64(most)
			t.Logf("%d granted of %d asked: %.4f of the bound of %d", granted.Load(), asked.Load(), share, most)
			if granted.Load() > most {
				t.Errorf("%d granted, the bound is %d", granted.Load(), most)
			}
			if share < 0.99 {
				t.Errorf("only %.4f of the bound was granted", share)
			}
		})
	}
}
