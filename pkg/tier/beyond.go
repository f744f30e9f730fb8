package tier

import (
	"errors"
	"reflect"
	"slices"
)

// Beyond names, by one *FieldError each, the limits that would give a subject more than both its tier and what it has now. Who may divide what was
// sold, but not sell, may not state them.
func (o Overrides) Beyond(t Tier, now Quota) error {
	var errs []error
	bad := func(field string) {
		errs = append(errs, &FieldError{field, errors.New("would be more than the tier sells and more than there is now")})
	}
	for _, f := range []struct {
		name      string
		want      *int64
		sold, has int64
	}{{"rpm_limit", o.RPMLimit, t.RPMLimit, now.RPMLimit}, {"tpm_limit", o.TPMLimit, t.TPMLimit, now.TPMLimit}, {"tpd_limit", o.TPDLimit, t.TPDLimit, now.TPDLimit},
		{"concurrent_limit", o.ConcurrentLimit, t.ConcurrentLimit, now.ConcurrentLimit}, {"max_context", o.MaxContext, t.MaxContext, now.MaxContext}} {
		if f.want != nil && more(*f.want, f.sold) && more(*f.want, f.has) {
			bad(f.name)
		}
	}
	if o.AllowedModels != nil && moreModels(*o.AllowedModels, t.AllowedModels) && moreModels(*o.AllowedModels, now.AllowedModels) {
		bad("allowed_models")
	}
	if o.Limits != nil && moreLimits(*o.Limits, t.Limits) && moreLimits(*o.Limits, now.Limits) {
		bad("limits")
	}
	if o.ModelLimits != nil { // groups can be compared in no simple way: they stay what they are
		if groups := cloneGroups(*o.ModelLimits); !reflect.DeepEqual(groups, cloneGroups(t.ModelLimits)) && !reflect.DeepEqual(groups, cloneGroups(now.ModelLimits)) {
			bad("model_limits")
		}
	}
	if o.Shards != nil && *o.Shards != now.Shards {
		errs = append(errs, &FieldError{"shards", errors.New("is for operators to state")})
	}
	return errors.Join(errs...)
}

// more: 0 is unlimited.
func more(want, have int64) bool { return have != 0 && (want == 0 || want > have) }

// moreModels: empty is all.
func moreModels(want, have []string) bool {
	return len(have) != 0 && (len(want) == 0 || slices.ContainsFunc(want, func(m string) bool { return !slices.Contains(have, m) }))
}

// moreLimits: what is not in the list is unlimited.
func moreLimits(want, have []Limit) bool {
	for _, h := range have {
		i := slices.IndexFunc(want, func(w Limit) bool { return w.kind() == h.kind() })
		if i < 0 || want[i].Capacity > h.Capacity {
			return true
		}
	}
	return false
}
