package tier

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/subject"
)

var user = subject.Subject{Kind: subject.User, ID: "u1"}

func shipped(t *testing.T, name string) Tier {
	for _, s := range Shipped() {
		if s.Name == name {
			return s
		}
	}
	t.Fatalf("tier %s is not shipped", name)
	return Tier{}
}

func ptr[T any](v T) *T { return &v }

func TestShippedTiersAreValidAndAsSold(t *testing.T) {
	for _, s := range Shipped() {
		if err := s.Validate(); err != nil {
			t.Errorf("%s: %v", s.Name, err)
		}
	}
	if f := shipped(t, Free); f.RPMLimit != 10 || f.TPMLimit != 10_000 || f.TPDLimit != 100_000 || f.ConcurrentLimit != 1 || f.MaxContext != 8_192 {
		t.Errorf("free is %+v", f)
	}
	if e := shipped(t, Enterprise); e.TPDLimit != 0 {
		t.Errorf("enterprise has a daily limit: %d", e.TPDLimit)
	}
}

func TestOmittedLimitIsTheTiersAndZeroIsUnlimited(t *testing.T) {
	q := Effective(user, "o1", shipped(t, Plus), Overrides{RPMLimit: ptr[int64](0), TPMLimit: ptr[int64](7)}, false, 3, time.Time{})
	if q.RPMLimit != 0 || q.TPMLimit != 7 || q.TPDLimit != 500_000 || q.ConcurrentLimit != 3 || q.Version != 3 || q.OrgID != "o1" || q.Tier != Plus {
		t.Errorf("got %+v", q)
	}
}

func TestEmptyModelListAllowsAll(t *testing.T) {
	free, all := Effective(user, "", shipped(t, Free), Overrides{}, false, 0, time.Time{}), Effective(user, "", shipped(t, Free), Overrides{AllowedModels: &[]string{}}, false, 0, time.Time{})
	if free.Allows("grok-4") || !free.Allows("grok-2") {
		t.Error("free must have the small models only")
	}
	if !all.Allows("grok-4") || !all.Allows("anything") {
		t.Error("an empty list must allow all models")
	}
}

func TestQuotaDoesNotShareItsModelsWithTheTier(t *testing.T) {
	f := shipped(t, Free)
	q := Effective(user, "", f, Overrides{}, false, 0, time.Time{})
	q.AllowedModels[0] = "changed"
	if f.AllowedModels[0] == "changed" {
		t.Error("changing a quota's models changed the tier's")
	}
}

func TestEveryInvalidFieldIsNamed(t *testing.T) {
	err := Overrides{RPMLimit: ptr[int64](-1), TPDLimit: ptr(MaxLimit + 1), AllowedModels: &[]string{"ok", "not ok"}}.Validate()
	var got []string
	for _, line := range strings.Split(err.Error(), "\n") {
		field, _, _ := strings.Cut(line, ":")
		got = append(got, field)
	}
	if want := []string{"rpm_limit", "tpd_limit", "allowed_models[1]"}; !slices.Equal(got, want) {
		t.Errorf("named %v, want %v", got, want)
	}
	var fe *FieldError
	if !errors.As(err, &fe) {
		t.Error("the error holds no FieldError")
	}
	bad := Tier{Name: "a b", Priority: 101, RedisAway: "maybe", MaxContext: -1}
	for _, f := range []string{"tier", "priority", "redis_away", "max_context"} {
		if !strings.Contains(bad.Validate().Error(), f+":") {
			t.Errorf("%s is not named", f)
		}
	}
}
