package reconcile

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"
)

const (
	viewRuns  = 3                      // a difference is real if it is the same so often
	viewPause = 300 * time.Millisecond // between two of them
	viewMost  = 10                     // times that are tried until nothing moves
	viewNamed = 10                     // periods whose groups are named

	figureGroups = "figures of other groups" // the name of a difference in Checksums
)

// viewKey is one figure of one period of one view.
type viewKey struct {
	view   string
	period int64 // Unix seconds
	figure string
}

type pair struct{ events, view int64 }

// CompareViews compares every view with usage_events, period by period from since on: the sums, and by checksums whether they are of the same
// groups. A figure that differs is asked for again; it is a difference if it differs by the same each time, and unsettled if it moves.
func CompareViews(ctx context.Context, ledger Sums, since time.Time) (found []Difference, unsettled []string, err error) {
	differing, unsettled, err := settledViews(ctx, ledger, since)
	return inOrder(differing), unsettled, err
}

// nameGroups names the groups of views and periods that differ, with their own figures: of the first periods, and of each the first groups.
func nameGroups(ctx context.Context, ledger Ledger, differing map[viewKey]pair, limit int) (found []Difference, err error) {
	periods := map[viewKey]struct{}{}
	for k := range differing {
		periods[viewKey{view: k.view, period: k.period}] = struct{}{}
	}
	sorted := slices.SortedFunc(maps.Keys(periods), func(a, b viewKey) int { return cmp.Or(cmp.Compare(a.view, b.view), cmp.Compare(a.period, b.period)) })
	for _, k := range sorted[:min(len(sorted), viewNamed)] {
		groups, err := ledger.Groups(ctx, k.view, time.Unix(k.period, 0).UTC(), limit)
		if err != nil {
			return nil, fmt.Errorf("name the groups that differ: %w", err)
		}
		for _, g := range groups {
			where := k.where()
			if g.At.Unix() != k.period {
				where += ", " + g.At.Format("15:04")
			}
			for _, f := range figures[1:] {
				if a, b := f.of(&g.Events), f.of(&g.View); a != b {
					found = append(found, Difference{KindViews, where + ", " + g.Who, f.name, a, b})
				}
			}
		}
	}
	return found, nil
}

// settledViews gives the figures that differ for good.
func settledViews(ctx context.Context, ledger Sums, since time.Time) (found map[viewKey]pair, unsettled []string, err error) {
	var last map[viewKey]pair
	seen := map[viewKey]int{} // how often a figure has differed by the same
	for run := range viewMost {
		sums, err := ledger.Sums(ctx, since)
		if err != nil {
			return nil, nil, fmt.Errorf("sum up the views: %w", err)
		}
		now := viewDifferences(sums, since)
		next, settled := map[viewKey]int{}, true
		for k, p := range now {
			next[k] = 1
			if was, ok := last[k]; ok && was.view-was.events == p.view-p.events {
				next[k] += seen[k]
			}
			settled = settled && next[k] >= viewRuns
		}
		last, seen = now, next
		if settled || run == viewMost-1 {
			break
		}
		select {
		case <-time.After(viewPause):
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
	for k := range last {
		if seen[k] < viewRuns {
			unsettled = append(unsettled, k.where()+": "+k.figure)
			delete(last, k)
		}
	}
	slices.Sort(unsettled)
	return last, unsettled, nil
}

func (k viewKey) where() string { return k.view + " " + periodName(k.view, k.period) }

func inOrder(differing map[viewKey]pair) (found []Difference) {
	for k, p := range differing {
		found = append(found, Difference{KindViews, k.where(), k.figure, p.events, p.view})
	}
	slices.SortFunc(found, func(a, b Difference) int { return cmp.Or(cmp.Compare(a.Where, b.Where), cmp.Compare(a.Name, b.Name)) })
	return found
}

func periodName(view string, unix int64) string {
	if view == ViewDaily {
		return time.Unix(unix, 0).UTC().Format(time.DateOnly)
	}
	return time.Unix(unix, 0).UTC().Format(hourFormat)
}

// total is what was said of one period.
type total struct {
	Figures
	Checksums
}

func (t *total) plus(s *Sum) {
	t.Figures.plus(s.Figures)
	t.Payers, t.Minutes, t.Quarters, t.Refusals = t.Payers+s.Groups.Payers, t.Minutes+s.Groups.Minutes, t.Quarters+s.Groups.Quarters, t.Refusals+s.Groups.Refusals
}

// groups is the checksum that tells of the view's groups.
func (t *total) groups(view string) int64 {
	sum := t.Payers
	switch view {
	case ViewMinutely:
		sum = t.Minutes
	case ViewQuarterly:
		sum = t.Quarters
	case ViewRejections:
		sum = t.Refusals
	}
	return int64(sum) //nolint:gosec // compared only
}

// viewDifferences are the figures in which a view disagrees with usage_events. Events are no column of the sums, so they are left out; of
// rejections_hourly there is one figure only. Checksums are compared where no figure differs: else they differ, too.
func viewDifferences(sums []Sum, since time.Time) map[viewKey]pair {
	of := map[string]map[int64]total{}
	for _, v := range Views {
		of[v] = map[int64]total{}
	}
	days := map[int64]total{}
	for _, s := range sums {
		at := s.Period.Unix()
		t := of[s.View][at]
		t.plus(&s)
		of[s.View][at] = t
		if s.View == ViewEvents {
			day := days[floor(at, 86_400)]
			day.plus(&s)
			days[floor(at, 86_400)] = day
		}
	}
	out := map[viewKey]pair{}
	for _, v := range Views[1:] {
		want := of[ViewEvents]
		if v == ViewDaily {
			want = days
		}
		for at := range union(want, of[v]) {
			if at < since.Unix() && !since.IsZero() { // of the first day only a part was asked for
				continue
			}
			l, r, same := want[at], of[v][at], true
			for _, f := range figures[1:] {
				if a, b := f.of(&l.Figures), f.of(&r.Figures); a != b && (v != ViewRejections || f.name == "rejected_requests") {
					out[viewKey{v, at, f.name}] = pair{a, b}
					same = false
				}
			}
			if a, b := l.groups(v), r.groups(v); same && a != b {
				out[viewKey{v, at, figureGroups}] = pair{a, b}
			}
		}
	}
	return out
}

func union[V, W any](a map[int64]V, b map[int64]W) map[int64]struct{} {
	out := make(map[int64]struct{}, len(a))
	for k := range a {
		out[k] = struct{}{}
	}
	for k := range b {
		out[k] = struct{}{}
	}
	return out
}
