package tier

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/subject"
)

// Limit is one further limit of a tier, a quota or an org's pool, beside the named ones. So requests per day, or input tokens per minute,
// are data.
type Limit struct {
	Counts   string `json:"counts"`   // requests, tokens, input_tokens or output_tokens
	Window   string `json:"window"`   // 1m, 1h or 1d
	Capacity int64  `json:"capacity"` // 1 to MaxLimit: who wants no limit leaves it out
}

// ModelLimits are limits of one subject for a group of models together. 0 is unlimited.
type ModelLimits struct {
	Group           string   `json:"group"`
	Models          []string `json:"models"` // a model is in one group at most
	RPMLimit        int64    `json:"rpm_limit"`
	TPMLimit        int64    `json:"tpm_limit"`
	TPDLimit        int64    `json:"tpd_limit"`
	ConcurrentLimit int64    `json:"concurrent_limit"`
	Limits          []Limit  `json:"limits"`
}

// What a Limit may count, and over what.
var (
	counts  = []string{"requests", "tokens", "input_tokens", "output_tokens"}
	windows = map[string]time.Duration{"1m": time.Minute, "1h": time.Hour, "1d": 24 * time.Hour}
	named   = map[Limit]string{{Counts: "requests", Window: "1m"}: "rpm_limit", {Counts: "tokens", Window: "1m"}: "tpm_limit", {Counts: "tokens", Window: "1d"}: "tpd_limit"}
)

// Bounds of what is stored.
const (
	MaxModels = 1000 // in one list
	MaxGroups = 100
	MaxShards = 64
)

// Span is the window as a duration; 0 if it is none of the known ones.
func (l Limit) Span() time.Duration { return windows[l.Window] }

// kind is the limit without its capacity.
func (l Limit) kind() Limit { return Limit{Counts: l.Counts, Window: l.Window} }

// GroupOf gives the group that a model belongs to.
func GroupOf(groups []ModelLimits, model string) (ModelLimits, bool) {
	for _, g := range groups {
		if slices.Contains(g.Models, model) {
			return g, true
		}
	}
	return ModelLimits{}, false
}

// cloneLimits never gives nil: JSON shows [].
func cloneLimits(ls []Limit) []Limit { return append([]Limit{}, ls...) }

func cloneGroups(gs []ModelLimits) []ModelLimits {
	out := make([]ModelLimits, len(gs))
	for i, g := range gs {
		g.Models, g.Limits = append([]string{}, g.Models...), cloneLimits(g.Limits)
		out[i] = g
	}
	return out
}

// checkLimits returns one FieldError per invalid field. field is the list's own name.
func checkLimits(field string, ls []Limit) (errs []error) {
	bad := func(i int, part, format string, args ...any) {
		errs = append(errs, &FieldError{fmt.Sprintf("%s[%d]%s", field, i, part), fmt.Errorf(format, args...)})
	}
	if most := len(counts)*len(windows) - len(named); len(ls) > most {
		return []error{&FieldError{field, fmt.Errorf("must hold at most %d limits, holds %d", most, len(ls))}}
	}
	for i, l := range ls {
		if !slices.Contains(counts, l.Counts) {
			bad(i, ".counts", "must be requests, tokens, input_tokens or output_tokens, is %q", cut(l.Counts))
		}
		if l.Span() == 0 {
			bad(i, ".window", "must be 1m, 1h or 1d, is %q", cut(l.Window))
		}
		if l.Capacity < 1 || l.Capacity > MaxLimit {
			bad(i, ".capacity", "must be from 1 to %d, is %d; leave the limit out for unlimited", MaxLimit, l.Capacity)
		}
		if name := named[l.kind()]; name != "" {
			bad(i, "", "is the limit that %s states", name)
		}
		if slices.ContainsFunc(ls[:i], func(o Limit) bool { return o.kind() == l.kind() }) {
			bad(i, "", "%s in %s are limited twice", cut(l.Counts), cut(l.Window))
		}
	}
	return errs
}

// cut keeps what a caller wrote short in an answer.
func cut(s string) string {
	if len(s) > 64 {
		return s[:64] + "…"
	}
	return s
}

// checkGroups returns one FieldError per invalid field.
func checkGroups(groups []ModelLimits) (errs []error) {
	if len(groups) > MaxGroups {
		return []error{&FieldError{"model_limits", fmt.Errorf("must hold at most %d groups, holds %d", MaxGroups, len(groups))}}
	}
	names, in := map[string]bool{}, map[string]string{}
	for i, g := range groups {
		at := fmt.Sprintf("model_limits[%d]", i)
		bad := func(part string, err error) { errs = append(errs, &FieldError{at + part, err}) }
		if err := subject.ValidateID(g.Group); err != nil {
			bad(".group", err)
		} else if names[g.Group] {
			bad(".group", fmt.Errorf("%q is given twice", g.Group))
		}
		names[g.Group] = true
		if len(g.Models) == 0 || len(g.Models) > MaxModels {
			bad(".models", fmt.Errorf("must name from 1 to %d models, names %d", MaxModels, len(g.Models)))
		}
		for j, m := range g.Models[:min(len(g.Models), MaxModels)] {
			if err := subject.ValidateID(m); err != nil {
				bad(fmt.Sprintf(".models[%d]", j), err)
			} else if other, twice := in[m]; twice {
				bad(fmt.Sprintf(".models[%d]", j), fmt.Errorf("%q is in the group %q already", m, other))
			} else {
				in[m] = g.Group
			}
		}
		for _, f := range []struct {
			name string
			v    int64
		}{{"rpm_limit", g.RPMLimit}, {"tpm_limit", g.TPMLimit}, {"tpd_limit", g.TPDLimit}, {"concurrent_limit", g.ConcurrentLimit}} {
			if err := checkLimit(at+"."+f.name, f.v); err != nil {
				errs = append(errs, err)
			}
		}
		errs = append(errs, checkLimits(at+".limits", g.Limits)...)
	}
	return errs
}

func checkShards(n int64) error {
	if n < 1 || n > MaxShards {
		return &FieldError{"shards", fmt.Errorf("must be from 1 to %d, is %d", MaxShards, n)}
	}
	return nil
}

// checkZone takes the names of the IANA time zone database.
func checkZone(name string) error {
	bad := &FieldError{"time_zone", errors.New("must be the name of an IANA time zone, such as UTC or Europe/Berlin")}
	if name == "" || name == "Local" || len(name) > 64 {
		return bad
	}
	if _, err := time.LoadLocation(name); err != nil {
		return bad
	}
	return nil
}
