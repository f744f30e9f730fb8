package tier

import (
	"errors"
	"time"
	_ "time/tzdata" // zones are the same on a machine without a zone database
)

// UTC is the zone of an org that has named no other.
const UTC = "UTC"

// Pool is what all subjects of an org share. 0 is unlimited; a pool has no tier to fall back on. Version 0: nobody has ever set it.
type Pool struct {
	OrgID           string
	RPMLimit        int64
	TPMLimit        int64
	TPDLimit        int64
	ConcurrentLimit int64
	Limits          []Limit
	Shards          int64  // how many Redis hash slots the org is spread over
	TimeZone        string // of the org's days and invoices
	Version         int64
	UpdatedAt       time.Time
}

// NoPool is an org's pool that limits nothing.
func NoPool(orgID string) Pool {
	return Pool{OrgID: orgID, Limits: []Limit{}, Shards: 1, TimeZone: UTC}
}

// Validate returns one FieldError per invalid field, joined; nil if all are good. The org's id is the caller's to check.
func (p Pool) Validate() error {
	var errs []error
	for _, f := range []struct {
		name string
		v    int64
	}{{"rpm_limit", p.RPMLimit}, {"tpm_limit", p.TPMLimit}, {"tpd_limit", p.TPDLimit}, {"concurrent_limit", p.ConcurrentLimit}} {
		errs = append(errs, checkLimit(f.name, f.v))
	}
	errs = append(errs, checkLimits("limits", p.Limits)...)
	return errors.Join(append(errs, checkShards(p.Shards), checkZone(p.TimeZone))...)
}
