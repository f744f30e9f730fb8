package pgquota

import (
	"errors"

	"github.com/tollgate-dev/tollgate/pkg/tier"
)

// ErrOutside says that what is to be changed is not in the org that the change is bound to. Who may change only within an org must not learn
// whether it exists.
var ErrOutside = errors.New("not in that org")

// Beyond is the error of a change that goes beyond what an org's own admins may do. Err holds one *tier.FieldError for each such field.
type Beyond struct{ Err error }

func (e *Beyond) Error() string { return "beyond an org-admin's right: " + e.Err.Error() }

// Within binds a change to an org: what is changed must be in it, and stays; tier, org and shards are kept, a suspension is not lifted, and no
// limit rises above both what the tier sells and what there is. "": bound to nothing. It is looked at under the locks of the change.
type Within string

// Holds refuses what is not in the org.
func (w Within) Holds(orgID string) error {
	if w != "" && string(w) != orgID {
		return ErrOutside
	}
	return nil
}

// allows refuses a change of a quota that goes beyond. sells is false for a key that a user owns: it has no tier, and only narrows its user's.
func (w Within) allows(c Change, now Entry, t tier.Tier, sells bool) error {
	if w == "" {
		return nil
	}
	var errs []error
	bad := func(field, detail string) {
		errs = append(errs, &tier.FieldError{Field: field, Err: errors.New(detail)})
	}
	if c.OrgID != nil && *c.OrgID != string(w) {
		bad("org_id", "who is in the org is not for an org-admin to state")
	}
	if c.Tier != nil && *c.Tier != t.Name {
		bad("tier", "is not for an org-admin to state")
	}
	if now.Suspended && c.Suspended != nil && !*c.Suspended {
		bad("suspended", "is not for an org-admin to lift")
	}
	if sells {
		errs = append(errs, c.Own.Beyond(t, now.Quota))
	}
	if err := errors.Join(errs...); err != nil {
		return &Beyond{err}
	}
	return nil
}
