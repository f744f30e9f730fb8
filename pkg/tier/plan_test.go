package tier

import (
	"slices"
	"strings"
	"testing"

	"github.com/tollgate-dev/tollgate/pkg/subject"
)

func fields(err error) []string {
	var names []string
	if err == nil {
		return nil
	}
	for line := range strings.Lines(err.Error()) {
		name, _, _ := strings.Cut(line, ":")
		names = append(names, name)
	}
	return names
}

func TestEveryFaultOfLimitsAndGroupsIsNamed(t *testing.T) {
	good := Limit{Counts: "requests", Window: "1d", Capacity: 1}
	for name, c := range map[string]struct {
		o    Overrides
		want []string
	}{
		"good": {o: Overrides{Limits: &[]Limit{good, {Counts: "input_tokens", Window: "1m", Capacity: MaxLimit}}, Shards: ptr[int64](64),
			ModelLimits: &[]ModelLimits{{Group: "g", Models: []string{"a", "b"}, Limits: []Limit{good}}, {Group: "h", Models: []string{"c"}}}}},
		"none":              {o: Overrides{Limits: &[]Limit{}, ModelLimits: &[]ModelLimits{}}},
		"unknown":           {o: Overrides{Limits: &[]Limit{{Counts: "images", Window: "1w"}}}, want: []string{"limits[0].counts", "limits[0].window", "limits[0].capacity"}},
		"a named one":       {o: Overrides{Limits: &[]Limit{{"requests", "1m", 1}, {"tokens", "1m", 1}, {"tokens", "1d", 1}}}, want: []string{"limits[0]", "limits[1]", "limits[2]"}},
		"twice":             {o: Overrides{Limits: &[]Limit{good, {"requests", "1d", 2}}}, want: []string{"limits[1]"}},
		"too many":          {o: Overrides{Limits: ptr(make([]Limit, 10))}, want: []string{"limits"}},
		"no shards":         {o: Overrides{Shards: ptr[int64](0)}, want: []string{"shards"}},
		"65 shards":         {o: Overrides{Shards: ptr[int64](65)}, want: []string{"shards"}},
		"a model in two":    {o: Overrides{ModelLimits: &[]ModelLimits{{Group: "g", Models: []string{"a"}}, {Group: "h", Models: []string{"b", "a"}}}}, want: []string{"model_limits[1].models[1]"}},
		"a group twice":     {o: Overrides{ModelLimits: &[]ModelLimits{{Group: "g", Models: []string{"a"}}, {Group: "g", Models: []string{"b"}}}}, want: []string{"model_limits[1].group"}},
		"faults in a group": {o: Overrides{ModelLimits: &[]ModelLimits{{Group: "a b", Models: []string{"x:y"}, RPMLimit: -1, Limits: []Limit{{"tokens", "1d", 0}}}}}, want: []string{"model_limits[0].group", "model_limits[0].models[0]", "model_limits[0].rpm_limit", "model_limits[0].limits[0].capacity", "model_limits[0].limits[0]"}},
		"no models":         {o: Overrides{ModelLimits: &[]ModelLimits{{Group: "g"}}}, want: []string{"model_limits[0].models"}},
	} {
		if got := fields(c.o.Validate()); !slices.Equal(got, c.want) {
			t.Errorf("%s: named %v, want %v", name, got, c.want)
		}
	}
}

func TestOmittedListIsTheTiersAndEmptyIsNone(t *testing.T) {
	own, tiers := []Limit{{"requests", "1h", 2}}, []Limit{{"requests", "1d", 1}}
	plus := Tier{Name: Plus, Limits: tiers, ModelLimits: []ModelLimits{{Group: "g", Models: []string{"m"}}}}
	for _, c := range []struct {
		own  *[]Limit
		want []Limit
	}{{nil, tiers}, {&own, own}, {&[]Limit{}, []Limit{}}} {
		q := Effective(user, "", plus, Overrides{Limits: c.own}, false, 1, plus.UpdatedAt)
		if !slices.Equal(q.Limits, c.want) || len(q.ModelLimits) != 1 || q.Shards != 1 {
			t.Errorf("%+v", q)
		}
	}
	if q := Effective(user, "", plus, Overrides{ModelLimits: &[]ModelLimits{}, Shards: ptr[int64](3)}, false, 1, plus.UpdatedAt); len(q.ModelLimits) != 0 || q.Shards != 3 {
		t.Errorf("%+v", q)
	}
}

func TestPlanIsNewerByAnyOfItsVersions(t *testing.T) {
	key := subject.Subject{Kind: subject.APIKey, ID: "k1"}
	p := func(k, u, tierVersion, org int64, orgID string) Plan {
		return Plan{Subject: key, OrgID: orgID, Pool: Pool{Version: org}, Quotas: []Quota{{Subject: key, Version: k}, {Subject: user, Tier: "plus", Version: u, TierVersion: tierVersion}}}
	}
	base := p(2, 2, 2, 2, "a")
	for _, newer := range []Plan{p(3, 2, 2, 2, "a"), p(2, 3, 2, 2, "a"), p(2, 2, 3, 2, "a"), p(2, 2, 2, 3, "a"), p(2, 3, 2, 0, "b"), p(2, 3, 2, 0, "")} {
		if !newer.NewerThan(base) {
			t.Errorf("%v is not newer", newer.Versions())
		}
	}
	if base.NewerThan(base) || p(1, 2, 2, 2, "a").NewerThan(base) {
		t.Error("the same or an older one is newer")
	}
}
