package decide

import (
	"slices"
	"testing"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
)

// Each scope is restored once: a key's by the key's usage, its user's by the user's, which includes that of the keys.
func TestAPayerIsWhatASubjectAloneIsChargedFor(t *testing.T) {
	p := keyPlan()
	k := PayerOf(p)
	if got, want := names(k.Scopes), []string{"key api_key:k1 1", "model api_key:k1/model:mine 1"}; !slices.Equal(got, want) {
		t.Errorf("key: %q, want %q", got, want)
	}
	if k.Shard != subject.Shard("acme", user) || k.Spread.Shards > 1 || !slices.Equal(k.Fences, fences(p)) {
		t.Errorf("key: %+v", k)
	}
	if !k.Charged(0, "x", "y") || k.Charged(1, "x", "y") || !k.Charged(1, "grok-4", "y") || !k.Charged(1, "x", "grok-4") {
		t.Error("a group is charged for what served and for what was asked for, and for nothing else")
	}
	p.Subject, p.Quotas = user, p.Quotas[1:]
	if got, want := names(PayerOf(p).Scopes), []string{"user user:u1 3", "model user:u1/model:other 1"}; !slices.Equal(got, want) {
		t.Errorf("user: %q, want %q", got, want)
	}
	p.Pool.Shards = 4
	if got, want := PayerOf(p).Shard, (limit.Spread{First: p.Shard(), Shards: 4}).Home("user:u1"); got != want || PayerOf(p).Spread.Shards > 1 {
		t.Errorf("in an org that is spread a member lies in its home, %d, not in %d", want, got)
	}
	p.OrgID, p.Quotas[0].Shards = "", 3
	if u := PayerOf(p); u.Spread != (limit.Spread{First: p.Shard(), Shards: 3}) || !u.Scopes[0].Split {
		t.Errorf("alone and spread: %+v", u)
	}
	o := PoolPayer(tier.Pool{OrgID: "acme", RPMLimit: 3, Shards: 4, Version: 8})
	if o.Shard != subject.Shard("acme", user) || o.Spread != (limit.Spread{First: o.Shard, Shards: 4}) || len(o.Scopes) != 1 || o.Scopes[0].Name != "org:acme" ||
		!slices.Equal(o.Fences, []limit.Fence{{Name: "org:acme", Version: 8}}) {
		t.Errorf("pool: %+v", o)
	}
}
