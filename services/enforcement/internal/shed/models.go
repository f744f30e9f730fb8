package shed

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tollgate-dev/tollgate/pkg/subject"
)

// Fallbacks name the small model that is served instead of a large one.
type Fallbacks map[string]string

// Groups name the group whose load is a model's. A model that is not in it is a group by itself.
type Groups map[string]string

// All is the group whose load is every model's. No id is empty.
const All = ""

// Of gives a model's group.
func (g Groups) Of(model string) string {
	if group, ok := g[model]; ok {
		return group
	}
	return model
}

// Names gives the groups of some models, sorted, without All.
func (g Groups) Names(models []string) []string {
	var names []string
	for _, m := range models {
		names = append(names, g.Of(m))
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// ParseFallbacks reads pairs of large:small. Models must be known; a small one is no large one of another pair. It gives every fault.
func ParseFallbacks(pairs, models []string) (Fallbacks, []error) {
	f, errs := parse(pairs, models)
	for _, large := range sortedKeys(f) {
		small := f[large]
		switch _, chain := f[small]; {
		case small == large:
			errs = append(errs, fmt.Errorf("%s falls back to itself", large))
		case chain:
			errs = append(errs, fmt.Errorf("%s falls back to %s, which falls back itself: name the model that is served", large, small))
		case !slices.Contains(models, small):
			errs = append(errs, fmt.Errorf("%s is not a known model", small))
		}
	}
	return f, errs
}

// ParseGroups reads pairs of model:group. Models must be known. It gives every fault.
func ParseGroups(pairs, models []string) (Groups, []error) {
	g, errs := parse(pairs, models)
	return g, errs
}

func parse(pairs, models []string) (map[string]string, []error) {
	out := map[string]string{}
	var errs []error
	for _, pair := range pairs {
		left, right, ok := strings.Cut(pair, ":")
		_, twice := out[left]
		switch {
		case !ok || subject.ValidateID(left) != nil || subject.ValidateID(right) != nil:
			errs = append(errs, fmt.Errorf("%q must be two names with a colon between", pair))
		case twice:
			errs = append(errs, fmt.Errorf("%s is given twice", left))
		case !slices.Contains(models, left):
			errs = append(errs, fmt.Errorf("%s is not a known model", left))
		default:
			out[left] = right
		}
	}
	return out, errs
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
