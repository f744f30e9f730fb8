package decide

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
)

// keyPlan is of a key of u1, who is in acme; both have groups of models.
func keyPlan() tier.Plan {
	return tier.Plan{Subject: key, OrgID: "acme", Pool: tier.Pool{OrgID: "acme", TPDLimit: 9, Version: 4}, Quotas: []tier.Quota{
		{Subject: key, RPMLimit: 5, Version: 2, ModelLimits: []tier.ModelLimits{{Group: "mine", Models: []string{"grok-4"}, TPMLimit: 7}}},
		{Subject: user, Tier: "plus", Version: 3, TierVersion: 1, ConcurrentLimit: 6, RedisAway: tier.AwayOpen,
			Limits:      []tier.Limit{{Counts: "requests", Window: "1d", Capacity: 100}, {Counts: "input_tokens", Window: "1m", Capacity: 200}, {Counts: "output_tokens", Window: "1h", Capacity: 300}},
			ModelLimits: []tier.ModelLimits{{Group: "big", Models: []string{"grok-4", "grok-2"}, ConcurrentLimit: 1}, {Group: "other", Models: []string{"m"}, RPMLimit: 1}}},
	}}
}

func names(scopes []limit.Scope) (out []string) {
	for _, s := range scopes {
		out = append(out, fmt.Sprintf("%s %s %d", s.Kind, s.Name, len(s.Limits)))
	}
	return out
}

func TestScopesAreKeyUserGroupsOfTheModelAndOrg(t *testing.T) {
	p := keyPlan()
	for model, want := range map[string][]string{
		"grok-4":  {"key api_key:k1 1", "user user:u1 3", "model api_key:k1/model:mine 1", "model user:u1/model:big 0", "org org:acme 1"},
		"grok-2":  {"key api_key:k1 1", "user user:u1 3", "model user:u1/model:big 0", "org org:acme 1"},
		"unknown": {"key api_key:k1 1", "user user:u1 3", "org org:acme 1"},
	} {
		if got := names(Scopes(p, model)); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", model, got, want)
		}
	}
	limits := Scopes(p, "m")[1].Limits
	want := []limit.Limit{{Counted: limit.Requests, Capacity: 100, Window: 24 * time.Hour}, {Counted: limit.InputTokens, Capacity: 200, Window: time.Minute}, {Counted: limit.OutputTokens, Capacity: 300, Window: time.Hour}}
	if !reflect.DeepEqual(limits, want) || limits[0].Name() != "rpd" || limits[1].Name() != "itpm" {
		t.Errorf("%+v", limits)
	}
	c, err := ask(Request{Subject: key, Model: "grok-4"}, p, 0)
	if err != nil || c.Shard != subject.Shard("acme", user) || c.Away != limit.AwayOpen || c.Validate() != nil ||
		!slices.Equal(c.Fences, []limit.Fence{{Name: "api_key:k1", Version: 2}, {Name: "user:u1", Version: 3}, {Name: "tier:plus", Version: 1}, {Name: "org:acme", Version: 4}}) {
		t.Errorf("%+v, %v", c, err)
	}
}

// carried is a store of plans and a limiter that remembers what it was asked to carry.
type carried struct {
	plan  tier.Plan
	calls []limit.CarryRequest
	made  map[int]bool // moves that were made before
	err   error
}

func (c *carried) Plan(context.Context, subject.Subject) (tier.Plan, error) { return c.plan, nil }

func (c *carried) Carry(_ context.Context, r limit.CarryRequest) error {
	c.calls = append(c.calls, r)
	return c.err
}

func (c *carried) Carried(_ context.Context, rs []limit.CarryRequest) ([]bool, error) {
	made := make([]bool, len(rs))
	for i := range made {
		made[i] = c.made[i]
	}
	return made, c.err
}

func TestConsumptionIsCarriedBeforeAnybodyDecidesByThePlan(t *testing.T) {
	c := &carried{plan: keyPlan()}
	c.plan.Moves = []tier.Move{{Name: "user:u1", Version: 3, From: []int{1}, To: []int{2}}, {Name: "org:acme", Version: 4, From: []int{2}, To: []int{2, 3}}}
	c.plan.PoolMoves = c.plan.Moves[1:]
	p, err := Carrying{c, c}.Plan(t.Context(), key)
	own := []string{"api_key:k1", "user:u1", "api_key:k1/model:mine", "user:u1/model:big", "user:u1/model:other"}
	moves := []limit.Move{{From: []int{1}, To: []int{2}, Fence: limit.Fence{Name: "user:u1", Version: 3}},
		{From: []int{2}, To: []int{2, 3}, Fence: limit.Fence{Name: "org:acme", Version: 4}}}
	want := []limit.CarryRequest{{Moves: moves, Scopes: own, Fences: fences(c.plan)}, {Moves: moves[1:], Scopes: []string{"org:acme"}, Fences: fences(c.plan)}}
	if err != nil || !reflect.DeepEqual(p, c.plan) || !reflect.DeepEqual(c.calls, want) {
		t.Errorf("%v\n got %+v\nwant %+v", err, c.calls, want)
	}
	c.calls, c.made = nil, map[int]bool{0: true}
	if _, err := (Carrying{c, c}).Plan(t.Context(), key); err != nil || !reflect.DeepEqual(c.calls, want[1:]) {
		t.Errorf("moves that were made before: %+v, %v", c.calls, err)
	}
	c.err = errors.New("away")
	if _, err := (Carrying{c, c}).Plan(t.Context(), key); !errors.Is(err, c.err) {
		t.Errorf("a plan was given though its consumption lies elsewhere: %v", err)
	}
}
