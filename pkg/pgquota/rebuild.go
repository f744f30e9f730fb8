package pgquota

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tollgate-dev/tollgate/pkg/price"
	"github.com/tollgate-dev/tollgate/pkg/quotalog"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
	"github.com/tollgate-dev/tollgate/pkg/usage"
)

// rebuildBatch is how many names are looked at in one read.
const rebuildBatch = 500

// RebuildOptions of RebuildQuotas. Progress, if not nil, is told how many of about how many projections have been looked at. Repair makes those
// that differ what their events say.
type RebuildOptions struct {
	Repair   bool
	Progress func(done, total int64)
}

// RebuildReport is what RebuildQuotas found.
type RebuildReport struct {
	Projections int64 // quotas, keys, pools, tiers and books of prices that were looked at
	Events      int64
	Differences []Difference
}

// Left counts the differences that are still there.
func (r RebuildReport) Left() (n int) {
	for _, d := range r.Differences {
		if !d.Repaired {
			n++
		}
	}
	return n
}

// Difference is one field of a projection that is not what the events say.
type Difference struct {
	Name     string // "user:u1", "api_key:k1", "org:o1", "tier:plus", "price:grok-2"
	Field    string // of a price, when it begins. "": the whole
	Stored   string // JSON; "" if there is nothing
	Derived  string // JSON; "" if there is nothing
	Repaired bool
	Why      string // why it can't be told or repaired; "" otherwise
}

func (d Difference) String() string {
	s := d.Name
	if d.Field != "" {
		s += "." + d.Field
	}
	tell := func(v string) string {
		if v == "" {
			return "nothing"
		}
		return v
	}
	s += ": stored is " + tell(d.Stored) + ", the events say " + tell(d.Derived)
	if d.Why != "" {
		s += " (" + d.Why + ")"
	}
	if d.Repaired {
		s += ": repaired"
	}
	return s
}

// RebuildQuotas derives every projection (quotas, keys but for what is secret, pools, tiers, prices) from the events alone and compares it with what is
// stored, of one moment. With Repair what differs is then put right, one subject after the other under its lock, from the events there are by then;
// changes may go on meanwhile. Enforcement follows a repair within its cache time (60 s), for a repair is no change and makes no version.
// What only a person can put right, such as a history with a gap or a key whose row is gone, is named and left. The error: Postgres could not be asked.
func RebuildQuotas(ctx context.Context, s *Store, o RebuildOptions) (RebuildReport, error) {
	r := &rebuild{store: s, told: o.Progress}
	err := pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, sqlRebuildCount).Scan(&r.total); err != nil {
			return err
		}
		if err := r.tiers(ctx, tx); err != nil {
			return err
		}
		if err := r.prices(ctx, tx); err != nil {
			return err
		}
		return r.subjects(ctx, tx)
	})
	if err != nil {
		return RebuildReport{}, fmt.Errorf("rebuild quotas: %w", err)
	}
	if o.Repair {
		if err := r.repair(ctx); err != nil {
			return r.report, fmt.Errorf("rebuild quotas: repair: %w", err)
		}
	}
	return r.report, nil
}

type rebuild struct {
	store  *Store
	told   func(done, total int64)
	total  int64
	report RebuildReport
}

func (r *rebuild) looked(n int) {
	r.report.Projections += int64(n)
	if r.told != nil {
		r.told(r.report.Projections, max(r.total, r.report.Projections))
	}
}

// fields is a projection as JSON values by name; nil: there is none.
type fields map[string]json.RawMessage

// compare names each field that differs.
func (r *rebuild) compare(name string, stored, derived fields) {
	if stored == nil || derived == nil {
		if stored != nil || derived != nil {
			r.report.Differences = append(r.report.Differences, Difference{Name: name, Stored: stored.whole(), Derived: derived.whole()})
		}
		return
	}
	all := maps.Clone(stored)
	maps.Copy(all, derived)
	for _, f := range slices.Sorted(maps.Keys(all)) {
		if a, b := string(stored[f]), string(derived[f]); a != b {
			r.report.Differences = append(r.report.Differences, Difference{Name: name, Field: f, Stored: a, Derived: b})
		}
	}
}

func (r *rebuild) untold(name string, err error) {
	r.report.Differences = append(r.report.Differences, Difference{Name: name, Why: "its history can't be folded: " + err.Error()})
}

func (f fields) whole() string {
	if f == nil {
		return ""
	}
	b, err := json.Marshal(f)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func asFields(values ...any) (fields, error) {
	all := fields{}
	for _, v := range values {
		b, err := json.Marshal(v)
		if err != nil {
			return nil, err
		}
		var f fields
		if err := json.Unmarshal(b, &f); err != nil {
			return nil, err
		}
		maps.Copy(all, f)
	}
	return all, nil
}

// times are the columns beside a state.
type times struct {
	Deleted   bool        `json:"deleted"`
	Version   int64       `json:"version"`
	CreatedAt usage.Time  `json:"created_at"`
	UpdatedAt usage.Time  `json:"updated_at"`
	KeyMadeAt *usage.Time `json:"key_created_at"`
	RotatedAt *usage.Time `json:"rotated_at"`
	RevokedAt *usage.Time `json:"revoked_at"`
}

func (p folded) fields() (fields, error) {
	if p.projection == nil {
		return nil, nil
	}
	t := times{p.projection.Deleted, p.projection.Version, usage.At(p.projection.CreatedAt), usage.At(p.projection.UpdatedAt), usage.AtOrNil(p.made), usage.AtOrNil(p.rotated), usage.AtOrNil(p.revoked)}
	return asFields(p.projection.State, t)
}

// folded is a projection with what a key's row has beside it.
type folded struct {
	projection             *Projection
	made, rotated, revoked *time.Time // of a key
}

func fold(events []Event) (folded, error) {
	p, err := quotalog.Fold(events)
	f := folded{projection: p}
	if err == nil && p != nil && p.Owner != "" {
		f.made = &p.CreatedAt
		f.rotated, f.revoked = quotalog.KeyTimes(events)
	}
	return f, err
}

func (r *rebuild) subjects(ctx context.Context, tx pgx.Tx) error {
	for after := ""; ; {
		rows, err := tx.Query(ctx, sqlRebuildNames, after, rebuildBatch)
		if err != nil {
			return err
		}
		names, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil || len(names) == 0 {
			return err
		}
		after = names[len(names)-1]
		if rows, err = tx.Query(ctx, sqlRebuildEvents, names); err != nil {
			return err
		}
		histories := map[string][]Event{}
		events, err := pgx.CollectRows(rows, scanEvent)
		if err != nil {
			return err
		}
		for _, e := range events {
			histories[e.Subject] = append(histories[e.Subject], e)
		}
		r.report.Events += int64(len(events))
		stored, err := storedOf(ctx, tx, names)
		if err != nil {
			return err
		}
		for _, name := range names {
			derived, err := fold(histories[name])
			if err != nil {
				r.untold(name, err)
				continue
			}
			want, err := derived.fields()
			if err != nil {
				return err
			}
			have, err := stored[name].fields()
			if err != nil {
				return err
			}
			r.compare(name, have, want)
		}
		r.looked(len(names))
	}
}

// storedOf reads projections in the shape that the fold has.
func storedOf(ctx context.Context, tx pgx.Tx, names []string) (map[string]folded, error) {
	rows, err := tx.Query(ctx, sqlRebuildStored, names)
	if err != nil {
		return nil, err
	}
	all := map[string]folded{}
	_, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (struct{}, error) {
		var name string
		var c currentQuota
		var o orgColumns
		targets := append([]any{&name}, c.ownColumns.targets()...)
		if err := row.Scan(append(append(targets, c.key.targets()...), o.targets()...)...); err != nil {
			return struct{}{}, err
		}
		var f folded
		if k := c.key.key(); k != nil {
			f.made, f.rotated, f.revoked = &k.CreatedAt, k.RotatedAt, k.RevokedAt
			f.projection = &Projection{State: State{Owner: k.Owner(), Name: k.Name, Rotations: k.Rotations, Revoked: k.RevokedAt != nil}}
		}
		if st := c.state(); st != nil {
			f.projection = &Projection{State: *st, Version: *c.ownColumns.version, CreatedAt: c.createdAt.UTC(), UpdatedAt: c.ownColumns.updatedAt.UTC()}
		}
		if o.version != nil {
			p := o.pool(strings.TrimPrefix(name, "org:"))
			f.projection = &Projection{Deleted: *o.deleted, Version: p.Version, CreatedAt: o.createdAt.UTC(), UpdatedAt: p.UpdatedAt}
			if empty := tier.NoPool(p.OrgID); !*o.deleted || !samePool(p, empty) {
				f.projection.State = *poolState(p)
			}
		}
		all[name] = f
		return struct{}{}, nil
	})
	return all, err
}

// samePool compares what two pools state.
func samePool(a, b tier.Pool) bool {
	x, errX := asFields(poolState(a))
	y, errY := asFields(poolState(b))
	return errX == nil && errY == nil && x.whole() == y.whole()
}

type madeAt struct {
	CreatedAt usage.Time `json:"created_at"`
}

func (r *rebuild) tiers(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, sqlRebuildTiers)
	if err != nil {
		return err
	}
	type row struct {
		name    string
		stored  tierColumns
		created *time.Time
	}
	all, err := pgx.CollectRows(rows, func(cr pgx.CollectableRow) (row, error) {
		var t row
		err := cr.Scan(append(append([]any{&t.name}, t.stored.targets()...), &t.created)...)
		return t, err
	})
	if err != nil {
		return err
	}
	for _, t := range all {
		events, err := tierHistory(ctx, tx, t.name)
		if err != nil {
			return err
		}
		r.report.Events += int64(len(events))
		want, made, err := quotalog.FoldTier(events)
		if err != nil {
			r.untold(TierName(t.name), err)
			continue
		}
		var have, derived fields
		if t.created != nil {
			if have, err = asFields(ViewTier(t.stored.tier()), madeAt{usage.At(*t.created)}); err != nil {
				return err
			}
		}
		if want.Version > 0 {
			if derived, err = asFields(ViewTier(want), madeAt{usage.At(made)}); err != nil {
				return err
			}
		}
		r.compare(TierName(t.name), have, derived)
	}
	r.looked(len(all))
	return nil
}

func tierHistory(ctx context.Context, tx pgx.Tx, name string) ([]TierEvent, error) {
	rows, err := tx.Query(ctx, sqlListTierEvents, name, 0, nil)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanTierEvent)
}

// repair puts right what differs, tiers first: quotas refer to them.
func (r *rebuild) repair(ctx context.Context) error {
	var names []string
	for _, d := range r.report.Differences {
		if d.Why == "" && !slices.Contains(names, d.Name) {
			names = append(names, d.Name)
		}
	}
	for _, name := range names {
		why := ""
		err := r.store.change(ctx, name, func(tx pgx.Tx) (err error) {
			if id, ok := strings.CutPrefix(name, TierName("")); ok {
				why, err = repairTier(ctx, tx, id)
			} else if model, ok := strings.CutPrefix(name, price.BookName("")); ok {
				why, err = repairPrices(ctx, tx, model)
			} else {
				why, err = repairSubject(ctx, tx, name)
			}
			return err
		})
		if err != nil {
			return err
		}
		for i := range r.report.Differences {
			if d := &r.report.Differences[i]; d.Name == name {
				d.Repaired, d.Why = why == "", why
			}
		}
	}
	return nil
}

func repairTier(ctx context.Context, tx pgx.Tx, name string) (why string, err error) {
	events, err := tierHistory(ctx, tx, name)
	if err != nil {
		return "", err
	}
	t, made, err := quotalog.FoldTier(events)
	if err != nil || t.Version == 0 {
		return "a tier without a history is not dropped: quotas may refer to it", nil //nolint:nilerr // told as the difference's
	}
	limits, err := jsonColumn(&t.Limits)
	if err != nil {
		return "", err
	}
	groups, err := jsonColumn(&t.ModelLimits)
	if err != nil {
		return "", err
	}
	b := &pgx.Batch{}
	b.Queue(sqlUpsertTier, t.Name, t.RPMLimit, t.TPMLimit, t.TPDLimit, t.ConcurrentLimit, t.Priority, t.AllowedModels, t.MaxContext, string(t.RedisAway), limits, groups,
		t.Version, t.UpdatedAt)
	b.Queue(sqlRebuildTierMade, t.Name, made)
	return "", tx.SendBatch(ctx, b).Close()
}

func repairSubject(ctx context.Context, tx pgx.Tx, name string) (why string, err error) {
	rows, err := tx.Query(ctx, sqlRebuildEvents, []string{name})
	if err != nil {
		return "", err
	}
	events, err := pgx.CollectRows(rows, scanEvent)
	if err != nil {
		return "", err
	}
	derived, err := fold(events)
	if err != nil {
		return "its history can't be folded: " + err.Error(), nil //nolint:nilerr // told as the difference's
	}
	b := &pgx.Batch{}
	if id, ok := strings.CutPrefix(name, tier.OrgName("")); ok {
		err = repairOrg(b, id, derived.projection)
	} else {
		why, err = repairQuota(ctx, tx, b, name, derived)
	}
	if err != nil || why != "" {
		return why, err
	}
	return "", tx.SendBatch(ctx, b).Close()
}

func repairOrg(b *pgx.Batch, id string, p *Projection) error {
	b.Queue(sqlRebuildDropOrg, id)
	if p == nil {
		return nil
	}
	pool := tier.NoPool(id)
	if !p.Deleted {
		pool = statedPool(id, p.State)
	}
	limits, err := jsonColumn(&pool.Limits)
	if err != nil {
		return err
	}
	b.Queue(sqlUpsertOrg, id, pool.RPMLimit, pool.TPMLimit, pool.TPDLimit, pool.ConcurrentLimit, limits, pool.Shards, pool.TimeZone, p.Deleted, p.Version, p.UpdatedAt)
	b.Queue(sqlRebuildOrgMade, id, p.CreatedAt)
	return nil
}

func repairQuota(ctx context.Context, tx pgx.Tx, b *pgx.Batch, name string, f folded) (why string, err error) {
	sub, err := subject.Parse(name)
	if err != nil {
		return err.Error(), nil //nolint:nilerr // told as the difference's
	}
	var key *Key
	if sub.Kind == subject.APIKey {
		cur, err := current(ctx, tx, sub)
		if err != nil {
			return "", err
		}
		key = cur.key.key()
	}
	owner := ""
	if f.projection != nil {
		owner = f.projection.Owner
	}
	switch {
	case key == nil && owner != "":
		return "the key's row is gone, and with it the hash of its secret: nobody has it any more; make another key", nil
	case key != nil && key.Owner() != owner:
		return "the key's row names another owner, which nothing may change", nil
	}
	b.Queue(sqlRebuildDropQuota, name)
	if f.projection == nil {
		return "", nil
	}
	p := f.projection
	limits, err := jsonColumn(p.Limits)
	if err != nil {
		return "", err
	}
	groups, err := jsonColumn(p.ModelLimits)
	if err != nil {
		return "", err
	}
	b.Queue(sqlUpsertQuota, name, p.OrgID, p.Tier, p.RPMLimit, p.TPMLimit, p.TPDLimit, p.ConcurrentLimit, p.AllowedModels, p.MaxContext, limits, groups, p.Shards,
		p.Suspended, p.Version, p.UpdatedAt)
	b.Queue(sqlRebuildQuotaMade, name, p.CreatedAt)
	if key != nil {
		b.Queue(sqlRebuildKey, sub.ID, p.Name, p.Rotations, p.CreatedAt, f.rotated, f.revoked)
	}
	return "", nil
}
