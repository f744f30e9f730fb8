package e2e

import (
	"testing"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/client"
	"github.com/tollgate-dev/tollgate/pkg/tier"
)

// Cases B51 and B44 through both real APIs: the tightest of key, user and org wins; a rotation gives no fresh quota, nor does another key of
// the same user; a revoked key is refused at once.
func TestKeysShareWhatTheirUserAndOrgHave(t *testing.T) {
	_, e, q := services(t)
	user, org := newUser(t, q, limits{tpm: 300}), "e2e-"+uuid.NewString()
	if _, err := q.PutOrg(t.Context(), org, client.Pool{TPMLimit: 1000}); err != nil {
		t.Fatal(err)
	}
	unlimited := tier.Overrides{RPMLimit: new(int64(0)), TPDLimit: new(int64(0)), ConcurrentLimit: new(int64(0)), MaxContext: new(int64(0))}
	own := unlimited
	own.TPMLimit = new(int64(300))
	if _, err := q.PutQuota(t.Context(), user, client.QuotaChange{OrgID: &org, Overrides: own}); err != nil {
		t.Fatal(err)
	}
	var keys []client.Key
	for range 2 {
		k, err := q.CreateKey(t.Context(), client.NewKey{UserID: user, Name: "e2e", Overrides: tier.Overrides{TPMLimit: new(int64(600))}})
		if err != nil || k.Secret == "" || k.Propagation != "done" {
			t.Fatal(k, err)
		}
		keys = append(keys, k)
	}
	ask := func(key, reason, scope string) {
		t.Helper()
		tokens := int64(100)
		d, err := e.Check(t.Context(), client.CheckRequest{APIKeyID: key, Model: "grok-2", EstimatedTokens: &tokens})
		if err != nil || d.Allowed != (reason == "") || d.Reason != reason || d.Scope != scope {
			t.Fatalf("%+v, %v; want %q by the %q", d, err, reason, scope)
		}
	}
	for range 3 {
		ask(keys[0].ID, "", "")
	}
	ask(keys[0].ID, "tpm", "user")
	ask(keys[1].ID, "tpm", "user")
	again, err := q.RotateKey(t.Context(), keys[0].ID, client.KeyChange{})
	if err != nil || again.Secret == keys[0].Secret || again.ID != keys[0].ID {
		t.Fatal(again, err)
	}
	ask(keys[0].ID, "tpm", "user")
	if k, err := q.RevokeKey(t.Context(), keys[0].ID, client.KeyChange{}); err != nil || k.RevokedAt == nil {
		t.Fatal(k, err)
	}
	ask(keys[0].ID, "suspended", "")
	ask(keys[1].ID, "tpm", "user")
	if _, err := q.PutOrg(t.Context(), org, client.Pool{TPMLimit: 99}); err != nil {
		t.Fatal(err)
	}
	ask(keys[1].ID, "request_too_large", "org")
}
