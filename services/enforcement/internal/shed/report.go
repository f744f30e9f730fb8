package shed

import "time"

const (
	// Band is how far the level stays above a load that falls.
	Band = 0.02
	// Hold is how long the level stays within Band above a load that no longer reaches it.
	Hold = 10 * time.Second
)

// Report is the load of one group of models as it was last told, with the level that follows from it. The zero Report is none.
type Report struct {
	Load    float64   // as reported, 0 to 1
	Level   float64   // at least Load, while Reached is not Hold ago
	Reached time.Time // when the load last reached the level, or the level last fell
	Until   time.Time // it counts no longer than this
}

// Next is the report that follows r when a load is reported at a time. It rises with the load: of two loads reported to the same r, the higher
// one has no lower level.
func (r Report) Next(load float64, now time.Time, ttl time.Duration) Report {
	next := Report{Load: load, Level: load, Reached: now, Until: now.Add(ttl)}
	if !r.Until.After(now) || load >= r.Level || now.Sub(r.Reached) >= Hold {
		return next
	}
	if next.Level = min(r.Level, load+Band); next.Level == r.Level {
		next.Reached = r.Reached
	}
	return next
}

// At is the level at a time; 0 once the report counts no more.
func (r Report) At(now time.Time) float64 {
	switch {
	case !r.Until.After(now):
		return 0
	case now.Sub(r.Reached) >= Hold:
		return r.Load
	}
	return r.Level
}
