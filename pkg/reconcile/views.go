package reconcile

import (
	"context"
	"fmt"
	"slices"
	"time"
)

const (
	viewRuns  = 3                      // a difference is real if it is the same so often
	viewPause = 300 * time.Millisecond // between two of them
	viewMost  = 10                     // times that are tried until nothing moves
)

// viewKey is one figure of one period of one view.
type viewKey struct {
	view   string
	period int64 // Unix seconds
	figure string
}

type pair struct{ events, view int64 }

// CompareViews compares every view with usage_events, period by period from since on. A figure that differs is asked for again; it is a difference if
// it differs by the same each time, and unsettled if it moves.
func CompareViews(ctx context.Context, ledger Sums, since time.Time) (found []Difference, unsettled []string, err error) {
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
	for k, p := range last {
		where := k.view + " " + periodName(k.view, k.period)
		if seen[k] < viewRuns {
			unsettled = append(unsettled, where+": "+k.figure)
			continue
		}
		found = append(found, Difference{KindViews, where, k.figure, p.events, p.view})
	}
	slices.Sort(unsettled)
	slices.SortFunc(found, func(a, b Difference) int { return slices.Compare([]string{a.Where, a.Name}, []string{b.Where, b.Name}) })
	return found, unsettled, nil
}

func periodName(view string, unix int64) string {
	if view == ViewDaily {
		return time.Unix(unix, 0).UTC().Format(time.DateOnly)
	}
	return time.Unix(unix, 0).UTC().Format(hourFormat)
}

// viewDifferences are the figures in which a view disagrees with usage_events. Events are no column of the sums, so they are left out; of
// rejections_hourly there is one figure only.
func viewDifferences(sums []Sum, since time.Time) map[viewKey]pair {
	of := map[string]map[int64]Figures{}
	for _, v := range Views {
		of[v] = map[int64]Figures{}
	}
	days := map[int64]Figures{}
	for _, s := range sums {
		at := s.Period.Unix()
		f := of[s.View][at]
		f.plus(s.Figures)
		of[s.View][at] = f
		if s.View == ViewEvents {
			day := days[floor(at, 86_400)]
			day.plus(s.Figures)
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
			l, r := want[at], of[v][at]
			for _, f := range figures[1:] {
				if a, b := f.of(&l), f.of(&r); a != b && (v != ViewRejections || f.name == "rejected_requests") {
					out[viewKey{v, at, f.name}] = pair{a, b}
				}
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
