package traffic

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/client"
)

// Asker answers a client's request.
type Asker interface {
	Ask(ctx context.Context, secret string, q Request) (Answer, error)
}

// Quotas is what an admin does for the sample users.
type Quotas interface {
	PutQuota(ctx context.Context, userID string, c client.QuotaChange) (client.Quota, error)
	CreateKey(ctx context.Context, k client.NewKey) (client.Key, error)
	RevokeKey(ctx context.Context, id string, c client.KeyChange) (client.Key, error)
	ListPrices(ctx context.Context) ([]client.PriceBook, error)
	PutPrice(ctx context.Context, model string, c client.PriceChange) (client.PriceBook, error)
}

var (
	_ Asker  = (*Gateway)(nil)
	_ Quotas = (*client.Quotas)(nil)
)

// prices are the sample ones, in USD for a million tokens of input and output.
var prices = map[string][2]string{"grok-2-mini": {"1", "2"}, "grok-2": {"3", "15"}, "grok-4": {"5", "25"}}

// priced is when the sample prices begin: before any traffic.
var priced = time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)

// Price gives the sample models a price, if they have none.
func Price(ctx context.Context, q Quotas) error {
	books, err := q.ListPrices(ctx)
	if err != nil {
		return fmt.Errorf("list prices: %w", err)
	}
	for model, p := range prices {
		if slices.ContainsFunc(books, func(b client.PriceBook) bool { return b.Model == model }) {
			continue
		}
		if _, err := q.PutPrice(ctx, model, client.PriceChange{Input: p[0], Output: p[1], ValidFrom: &priced, Reason: "sample"}); err != nil {
			return fmt.Errorf("price %s: %w", model, err)
		}
	}
	return nil
}

// Customer is a user and the key that it asks with.
type Customer struct {
	User string
	Key  client.Key
}

// Subscribe puts every profile's user on its tier and gives it a key.
func Subscribe(ctx context.Context, q Quotas, ps []Profile) ([]Customer, error) {
	var out []Customer
	for _, p := range ps {
		if _, err := q.PutQuota(ctx, p.User, client.QuotaChange{Tier: p.Tier}); err != nil {
			return out, fmt.Errorf("put %s on the %s tier: %w", p.User, p.Tier, err)
		}
		k, err := q.CreateKey(ctx, client.NewKey{UserID: p.User, Name: keyName})
		if err != nil {
			return out, fmt.Errorf("make a key of %s: %w", p.User, err)
		}
		out = append(out, Customer{p.User, k})
	}
	return out, nil
}

const keyName = "sample traffic"

// Unsubscribe revokes the customers' keys: nobody has kept their secrets.
func Unsubscribe(ctx context.Context, q Quotas, cs []Customer) error {
	for _, c := range cs {
		if _, err := q.RevokeKey(ctx, c.Key.ID, client.KeyChange{Reason: "sample traffic is over"}); err != nil {
			return fmt.Errorf("revoke the key of %s: %w", c.User, err)
		}
	}
	return nil
}

// Run lets all users send for d, or until ctx ends, and returns when every request is answered. cs are those of Subscribe.
func Run(ctx context.Context, api Asker, ps []Profile, cs []Customer, d time.Duration, t *Tally) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var users sync.WaitGroup
	for i, p := range ps {
		users.Go(func() { send(ctx, api, p, cs[i].Key.Secret, rand.New(rand.NewPCG(1, uint64(i))), t) }) //nolint:gosec // the same traffic at every run
	}
	users.Wait()
}

func send(ctx context.Context, api Asker, p Profile, secret string, r *rand.Rand, t *Tally) {
	var open sync.WaitGroup
	defer open.Wait()
	tick := time.NewTicker(p.Every)
	defer tick.Stop()
	for n := 0; ; {
		for range p.Burst {
			q := p.next(r, n)
			n++
			open.Go(func() { // what was begun is finished
				a, err := api.Ask(context.WithoutCancel(ctx), secret, q.asked())
				t.answered(p.User, a, err)
			})
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
