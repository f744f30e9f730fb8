package reconciliation

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tollgate-dev/tollgate/pkg/reconcile"
)

// views gives the same figures in every view, but for what is added to usage_hourly.
type views struct {
	add   int64
	err   error
	since time.Time
}

func (v *views) Sums(_ context.Context, since time.Time) (sums []reconcile.Sum, _ error) {
	v.since = since
	for _, name := range reconcile.Views {
		s := reconcile.Sum{View: name, Period: since, Figures: reconcile.Figures{Requests: 5, InputTokens: 100}}
		if name == reconcile.ViewHourly {
			s.Figures.InputTokens += v.add
		}
		sums = append(sums, s)
	}
	return sums, v.err
}

func TestEachRoundSetsTheGaugesAndNamesEachDifference(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ledger, beyond, away := &views{}, []string(nil), error(nil)
		var log bytes.Buffer
		w := &Watch{Ledger: ledger, Offsets: func(context.Context) ([]string, error) { return beyond, away }, Every: time.Minute, Log: slog.New(slog.NewTextHandler(&log, nil)), Now: time.Now}
		reg := prometheus.NewRegistry()
		w.Register(reg)
		gauges := func() string {
			var b strings.Builder
			for _, k := range kinds {
				_, _ = fmt.Fprintf(&b, "%s %v, ", k, testutil.ToFloat64(w.differences.WithLabelValues(k)))
			}
			return b.String()
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx) }()
		round := func(wantGauges, wantLog string, wantSuccess bool) {
			t.Helper()
			before := testutil.ToFloat64(w.last)
			time.Sleep(time.Minute)
			synctest.Wait()
			if got := gauges(); got != wantGauges {
				t.Errorf("gauges %s want %s", got, wantGauges)
			}
			if !strings.Contains(log.String(), wantLog) || (wantLog == "" && log.Len() > 0) {
				t.Errorf("log %q, want %q", log.String(), wantLog)
			}
			if after := testutil.ToFloat64(w.last); (after > before) != wantSuccess {
				t.Errorf("last success went from %v to %v", before, after)
			}
			log.Reset()
		}
		time.Sleep(10 * time.Second) // a round that finds something takes a second
		round("offsets 0, views 0, ", "", true)
		if want := time.Now().UTC().Add(-window).Truncate(24 * time.Hour); !ledger.since.Equal(want) {
			t.Errorf("compared since %s, want %s", ledger.since, want)
		}
		ledger.add, beyond = 7, []string{"partition 3 beyond", "partition 5 lost"}
		round("offsets 2, views 1, ", "partition 5 lost", true)
		round("offsets 2, views 1, ", "input_tokens: usage_events 100, the view 107 (+7)", true)
		ledger.err = errors.New("away")
		round("offsets 2, views 1, ", "away", false)
		ledger.err, ledger.add, beyond, away = nil, 0, nil, errors.New("Kafka is away")
		round("offsets 2, views 1, ", "Kafka is away", false)
		away = nil
		round("offsets 0, views 0, ", "", true)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// slow is a ledger of so many events that its sums take a while.
type slow struct {
	views
	takes  time.Duration
	rounds int
}

func (s *slow) Sums(ctx context.Context, since time.Time) ([]reconcile.Sum, error) {
	s.rounds++
	time.Sleep(s.takes)
	return s.views.Sums(ctx, since)
}

func TestAtMostATenthOfTheTimeIsSpentOnComparisons(t *testing.T) {
	for takes, want := range map[time.Duration]int{0: 60, time.Second: 60, 30 * time.Second: 12} {
		synctest.Test(t, func(t *testing.T) {
			ledger := &slow{takes: takes}
			w := &Watch{Ledger: ledger, Offsets: func(context.Context) ([]string, error) { return nil, nil }, Every: time.Minute, Log: slog.New(slog.DiscardHandler), Now: time.Now}
			w.Register(prometheus.NewRegistry())
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour-time.Nanosecond)
			defer cancel()
			if err := w.Run(ctx); err != nil {
				t.Fatal(err)
			}
			if ledger.rounds != want {
				t.Errorf("%d comparisons in an hour, want %d, if one takes %s", ledger.rounds, want, takes)
			}
		})
	}
}
