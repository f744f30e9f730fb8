package app

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/client"
	"github.com/tollgate-dev/tollgate/services/standalone/internal/ledger"
	"github.com/tollgate-dev/tollgate/services/standalone/internal/traffic"
)

const (
	drawEvery    = 100 * time.Millisecond // on a terminal
	lineEvery    = 2 * time.Second        // elsewhere
	lookEvery    = 200 * time.Millisecond // at the ledger
	ledgerWithin = 30 * time.Second       // for the ledger to count all of the traffic
)

// demonstrate drives the sample traffic, then checks that log and ledger agree. It returns what is wrong.
func (s *standalone) demonstrate(ctx context.Context) error {
	if s.cfg.Traffic == 0 && !s.cfg.Exit {
		return nil
	}
	var err error
	if s.cfg.Traffic > 0 {
		err = s.drive(ctx)
	}
	if err == nil && ctx.Err() == nil {
		err = s.closingCheck(ctx)
	}
	if ctx.Err() != nil {
		err = nil // it comes of being asked to stop
	}
	return err
}

// drive shows the sample traffic until the ledger has counted all of it.
func (s *standalone) drive(ctx context.Context) error {
	profiles := traffic.Profiles()
	quotas := client.NewQuotas(baseURL(s.cfg.QuotaAddr), s.kept.AdminToken)
	defer quotas.Close()
	if err := traffic.Subscribe(ctx, quotas, profiles); err != nil {
		return err
	}
	users := make([]string, len(profiles))
	for i, p := range profiles {
		users[i] = p.User
	}
	book, err := ledger.Open(s.stores.ClickHouseURL, users)
	if err != nil {
		return err
	}
	defer func() { _ = book.Close() }()

	s.out.Say("Sample traffic through the HTTP APIs: one user of each tier (demo-free, demo-plus, …)\n")
	tally := traffic.NewTally(profiles)
	v := &view{s: s, tally: tally, planned: s.cfg.Traffic, begin: time.Now()}
	watchCtx, stopWatching := context.WithCancel(ctx)
	defer stopWatching()
	before, err := book.Events(ctx)
	if err != nil {
		return err
	}
	var watchers sync.WaitGroup
	watchers.Go(func() { v.watch(watchCtx, book, before) })
	watchers.Go(func() { v.show(watchCtx) })

	api := client.NewEnforcement(baseURL(s.cfg.EnforcementAddr), s.kept.ServiceToken)
	defer api.Close()
	traffic.Run(ctx, api, profiles, s.cfg.Traffic, tally)
	v.finish(ctx)
	stopWatching()
	watchers.Wait()
	v.last()
	if snap := tally.Snapshot(); snap.Errors > 0 {
		return fmt.Errorf("%d calls of the sample traffic failed, last: %s", snap.Errors, snap.LastError)
	}
	return nil
}

// view shows the traffic while it runs.
type view struct {
	s       *standalone
	tally   *traffic.Tally
	planned time.Duration
	begin   time.Time

	mu     sync.Mutex
	ledger traffic.Ledger
}

func (v *view) elapsed() time.Duration { return min(time.Since(v.begin), v.planned) }

func (v *view) seen() traffic.Ledger {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.ledger
}

// watch follows the ledger. Its lag is how long ago the log already held what the ledger counts now.
func (v *view) watch(ctx context.Context, book *ledger.Reader, before int64) {
	var sent history
	for {
		sent.add(v.tally.Snapshot().Events())
		if n, err := book.Events(ctx); err == nil {
			n -= before
			v.mu.Lock()
			v.ledger = traffic.Ledger{Events: n, Lag: sent.since(n), Known: true}
			v.mu.Unlock()
		}
		select {
		case <-time.After(lookEvery):
		case <-ctx.Done():
			return
		}
	}
}

// history remembers when how many events had been sent.
type history struct {
	at []time.Time
	n  []int64
}

func (h *history) add(n int64) { h.at, h.n = append(h.at, time.Now()), append(h.n, n) }

// since tells how long ago more than n had been sent for the first time.
func (h *history) since(n int64) time.Duration {
	for i, sent := range h.n {
		if sent > n {
			return time.Since(h.at[i])
		}
	}
	return 0
}

// show draws the table, or now and then a line.
func (v *view) show(ctx context.Context) {
	every := lineEvery
	if v.s.out.Terminal() {
		every = drawEvery
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if v.s.out.Terminal() {
			v.s.out.Draw(traffic.Table(v.tally.Snapshot(), v.seen(), v.elapsed(), v.planned))
		} else {
			v.s.out.Say("%s", traffic.Line(v.tally.Snapshot(), v.seen(), v.elapsed(), v.planned))
		}
	}
}

// finish waits until the ledger has counted everything.
func (v *view) finish(ctx context.Context) {
	want := v.tally.Snapshot().Events()
	deadline := time.Now().Add(ledgerWithin)
	for v.seen().Events < want && time.Now().Before(deadline) {
		select {
		case <-time.After(lookEvery / 4):
		case <-ctx.Done():
			return
		}
	}
}

// last leaves the whole table standing.
func (v *view) last() {
	v.s.out.Draw(traffic.Table(v.tally.Snapshot(), v.seen(), v.elapsed(), v.planned))
	v.s.out.EndTable()
}
