package pgquota

import (
	"errors"
	"fmt"
	"slices"
	"unicode"
	"unicode/utf8"

	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
)

// Longest actor and reason, in characters (schemas/events/quota-changed.v1).
const (
	MaxActor  = 256
	MaxReason = 1024
)

// Change states what a subject's quota is to be. Own is the whole set of its own limits: one that is nil is the tier's again. OrgID ("":
// leave the org), Tier and Suspended are kept where they are nil; a new subject begins in no org, on DefaultTier, not suspended.
type Change struct {
	Subject   subject.Subject
	OrgID     *string
	Tier      *string
	Suspended *bool
	Own       tier.Overrides
	If        Precondition
	Within    Within
	Actor     string
	Reason    string
}

// TierChange states what a tier is to be, completely; Tier.Version and Tier.UpdatedAt are ignored.
type TierChange struct {
	Tier   tier.Tier
	If     Precondition
	Actor  string
	Reason string
}

// Precondition is what must hold for a change to be made. Version 0 stands for what doesn't exist yet. The zero value asks for nothing.
type Precondition struct {
	Versions []int64 // nil, or the version must be one of these (If-Match: "7")
	Exists   bool    // the version must be 1 or more (If-Match: *)
	Absent   bool    // the version must be 0 (If-None-Match: *)
}

func (p Precondition) check(name string, version int64) error {
	if (p.Versions != nil && !slices.Contains(p.Versions, version)) || (p.Exists && version == 0) || (p.Absent && version != 0) {
		return &VersionMismatch{Name: name, Current: version}
	}
	return nil
}

// ErrVersionMismatch says that a precondition does not hold; the error is a *VersionMismatch.
var ErrVersionMismatch = errors.New("version mismatch")

// VersionMismatch tells the version that is current. 0: there is none yet.
type VersionMismatch struct {
	Name    string
	Current int64
}

func (e *VersionMismatch) Error() string {
	return fmt.Sprintf("%s is at version %d", e.Name, e.Current)
}

// Is makes errors.Is(err, ErrVersionMismatch) true.
func (e *VersionMismatch) Is(target error) bool { return target == ErrVersionMismatch }

var idField = map[subject.Kind]string{subject.User: "user_id", subject.APIKey: "api_key_id"}

// Validate returns one *tier.FieldError per invalid field, joined; nil if all are good. Whether the tier exists, the transaction tells.
func (c Change) Validate() error {
	errs := []error{c.Own.Validate(), checkNote("reason", c.Reason, 0, MaxReason), checkNote("actor", c.Actor, 1, MaxActor)}
	if err := subject.ValidateID(c.Subject.ID); err != nil {
		errs = append(errs, &tier.FieldError{Field: idField[c.Subject.Kind], Err: err})
	}
	if c.OrgID != nil && *c.OrgID != "" {
		if err := subject.ValidateID(*c.OrgID); err != nil {
			errs = append(errs, &tier.FieldError{Field: "org_id", Err: err})
		}
	}
	if c.Tier != nil {
		if err := subject.ValidateID(*c.Tier); err != nil {
			errs = append(errs, &tier.FieldError{Field: "tier", Err: err})
		}
	}
	if c.Own.AllowedModels != nil {
		errs = append(errs, checkDistinct(*c.Own.AllowedModels))
	}
	return errors.Join(errs...)
}

// Validate returns one *tier.FieldError per invalid field, joined; nil if all are good.
func (c TierChange) Validate() error {
	return errors.Join(c.Tier.Validate(), checkDistinct(c.Tier.AllowedModels), checkNote("reason", c.Reason, 0, MaxReason),
		checkNote("actor", c.Actor, 1, MaxActor))
}

// checkNote lets through printable text: what ends in an audit log must not be able to forge its lines, and Postgres stores no NUL.
func checkNote(field, s string, minLen, maxLen int) error {
	switch n := utf8.RuneCountInString(s); {
	case !utf8.ValidString(s):
		return &tier.FieldError{Field: field, Err: errors.New("must be valid UTF-8")}
	case n < minLen || n > maxLen:
		return &tier.FieldError{Field: field, Err: fmt.Errorf("must have from %d to %d characters, has %d", minLen, maxLen, n)}
	}
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return &tier.FieldError{Field: field, Err: fmt.Errorf("may hold only printable characters and spaces, holds %U", r)}
		}
	}
	return nil
}

func checkDistinct(models []string) error {
	seen := make(map[string]bool, len(models))
	var errs []error
	for i, m := range models {
		if seen[m] {
			errs = append(errs, &tier.FieldError{Field: fmt.Sprintf("allowed_models[%d]", i), Err: fmt.Errorf("%q is named twice", m)})
		}
		seen[m] = true
	}
	return errors.Join(errs...)
}
