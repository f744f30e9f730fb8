package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/client"
	"github.com/tollgate-dev/tollgate/pkg/embedded/process"
	"github.com/tollgate-dev/tollgate/pkg/tier"
	"github.com/tollgate-dev/tollgate/services/e2e/internal/system"
)

var changes = flag.Int("changes", 600, "how many changes are made, each checked on three instances; 10000 is the nightly size")

// enforcement starts another instance on the stores of the whole path.
func (p *wholePath) enforcement(t *testing.T, name string) *client.Enforcement {
	t.Helper()
	port, err := process.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	addr := process.Addr(port)
	st := p.stores
	st.SpoolDir = filepath.Join(t.TempDir(), "spool")
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- system.Run(ctx, system.Enforcement, append(st.Environ(), "TOLLGATE_INSTANCE="+name, "TOLLGATE_ENFORCEMENT_ADDR="+addr), os.Stderr)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("%s ended with %v", name, err)
		}
	})
	if err := system.AwaitReady(t.Context(), "http://"+addr, ended); err != nil {
		t.Fatal(err)
	}
	e := client.NewEnforcement("http://"+addr, system.ServiceToken)
	t.Cleanup(e.Close)
	return e
}

// Once a change is answered, the very next check of every instance is decided by it: limits, suspensions, moves between orgs, revoked keys.
func TestAnsweredChangeIsSeenByTheNextCheckOfEveryInstance(t *testing.T) {
	p, first, q := services(t)
	instances := []*client.Enforcement{first, p.enforcement(t, "fresh-1"), p.enforcement(t, "fresh-2")}
	run := uuid.NewString()[:8]
	var next, stale, checks atomic.Int64
	began := time.Now()
	check := func(r client.CheckRequest, what string, fresh func(client.Decision) bool) {
		var wg sync.WaitGroup
		for n, e := range instances {
			wg.Go(func() {
				d, err := e.Check(t.Context(), r)
				switch checks.Add(1); {
				case err != nil || d.Degraded:
					t.Errorf("%s on instance %d: %+v, %v", what, n, d, err)
				case !fresh(d):
					stale.Add(1)
					t.Errorf("%s on instance %d was decided by what was before: %+v", what, n, d)
				}
			})
		}
		wg.Wait()
	}
	var workers sync.WaitGroup
	for w := range 4 {
		workers.Go(func() {
			user := fmt.Sprintf("fresh-%s-%d", run, w)
			tokens := int64(1)
			ask := client.CheckRequest{UserID: user, Model: "grok-2", EstimatedTokens: &tokens, DryRun: true}
			for i := next.Add(1); i <= int64(*changes) && !t.Failed(); i = next.Add(1) {
				what := fmt.Sprintf("change %d of %s", i, user)
				if i%10 == 9 { // a key that is made, used and revoked
					k, err := q.CreateKey(t.Context(), client.NewKey{UserID: user})
					if err != nil {
						t.Error(err)
						return
					}
					of := client.CheckRequest{APIKeyID: k.ID, Model: "grok-2", EstimatedTokens: &tokens, DryRun: true}
					check(of, what+": a new key", func(d client.Decision) bool { return d.Allowed })
					if k, err = q.RevokeKey(t.Context(), k.ID, client.KeyChange{}); err != nil || k.Propagation != "done" {
						t.Error(k, err)
						return
					}
					check(of, what+": a revoked key", func(d client.Decision) bool { return !d.Allowed && d.Reason == "suspended" })
					continue
				}
				// Every 100 changes the user moves. A new key carries along each move of its user's last day before its first decision.
				rpm, suspended, org := 1_000_000+i, i%5 == 0, fmt.Sprintf("fresh-%s-org-%d", run, i/100%3)
				quota, err := q.PutQuota(t.Context(), user, client.QuotaChange{Tier: []string{tier.Plus, tier.API}[i%2], OrgID: &org, Suspended: &suspended,
					Overrides: tier.Overrides{RPMLimit: &rpm}})
				if err != nil || quota.Propagation != "done" {
					t.Error(quota, err)
					return
				}
				check(ask, what, func(d client.Decision) bool {
					if suspended {
						return d.Reason == "suspended"
					}
					return d.Allowed && d.QuotaVersion == quota.Version && d.Limit["requests"] != nil && *d.Limit["requests"] == rpm
				})
				if suspended { // so that the next of this worker's keys is not refused for it
					lifted := false
					if _, err := q.PutQuota(t.Context(), user, client.QuotaChange{Suspended: &lifted}); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	workers.Wait()
	t.Logf("%d changes, %d checks on %d instances, %d stale, in %v", *changes, checks.Load(), len(instances), stale.Load(), time.Since(began).Round(time.Second))
}
