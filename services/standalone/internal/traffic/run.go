package traffic

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/client"
	"github.com/tollgate-dev/tollgate/pkg/usage"
)

// Enforcement is what traffic asks and tells.
type Enforcement interface {
	CheckPatiently(ctx context.Context, r client.CheckRequest) (client.Decision, error)
	Record(ctx context.Context, r client.RecordRequest) (client.Receipt, error)
}

// Quotas puts the sample users on their tiers.
type Quotas interface {
	PutQuota(ctx context.Context, userID string, c client.QuotaChange) (client.Quota, error)
}

var (
	_ Enforcement = (*client.Enforcement)(nil)
	_ Quotas      = (*client.Quotas)(nil)
)

// Subscribe puts every profile's user on its tier.
func Subscribe(ctx context.Context, q Quotas, ps []Profile) error {
	for _, p := range ps {
		if _, err := q.PutQuota(ctx, p.User, client.QuotaChange{Tier: p.Tier}); err != nil {
			return fmt.Errorf("put %s on the %s tier: %w", p.User, p.Tier, err)
		}
	}
	return nil
}

// Run lets all users send for d, or until ctx ends, and returns when every allowed request is recorded.
func Run(ctx context.Context, api Enforcement, ps []Profile, d time.Duration, t *Tally) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var users sync.WaitGroup
	for i, p := range ps {
		users.Go(func() { send(ctx, api, p, rand.New(rand.NewPCG(1, uint64(i))), t) }) //nolint:gosec // the same traffic at every run
	}
	users.Wait()
}

func send(ctx context.Context, api Enforcement, p Profile, r *rand.Rand, t *Tally) {
	var open sync.WaitGroup
	defer open.Wait()
	tick := time.NewTicker(p.Every)
	defer tick.Stop()
	for n := 0; ; {
		for range p.Burst {
			q := p.next(r, n)
			n++
			open.Go(func() { one(context.WithoutCancel(ctx), api, p, q, t) }) // what was begun is finished
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// one is a request from check to record.
func one(ctx context.Context, api Enforcement, p Profile, q request, t *Tally) {
	id := uuid.Must(uuid.NewV7())
	begin := time.Now()
	d, err := api.CheckPatiently(ctx, client.CheckRequest{UserID: p.User, Model: q.model, RequestID: id, InputTokens: &q.input, MaxOutputTokens: &q.maxOutput})
	if err != nil {
		t.failed(p.Tier, err)
		return
	}
	t.decided(p.Tier, d.Allowed, d.Reason, time.Since(begin))
	if !d.Allowed {
		return
	}
	time.Sleep(p.Hold) // the inference
	sent := time.Now()
	_, err = api.Record(ctx, client.RecordRequest{UserID: p.User, RequestID: id, Model: d.Model, InputTokens: q.input, OutputTokens: q.output,
		LatencyMS: sent.Sub(begin).Milliseconds(), Outcome: string(usage.Completed)})
	if err != nil {
		t.failed(p.Tier, err)
		return
	}
	t.recorded(p.Tier, q.input, q.output, time.Since(sent))
}
