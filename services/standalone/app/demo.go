package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
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

// drive sends the sample traffic through the gateway and shows it until the ledger has counted and priced all of it.
func (s *standalone) drive(ctx context.Context) (err error) {
	if !s.simulated {
		s.out.Say("No sample traffic: TOLLGATE_UPSTREAM_URL is an inference server of yours.")
		return nil
	}
	quotas := client.NewQuotas(baseURL(s.cfg.QuotaAddr), s.kept.AdminToken)
	defer quotas.Close()
	book, err := ledger.Open(s.stores.ClickHouseURL)
	if err != nil {
		return err
	}
	defer func() { _ = book.Close() }()
	if err := traffic.Price(ctx, quotas); err != nil {
		return err
	}
	api := &traffic.Gateway{URL: baseURL(s.cfg.GatewayAddr), HTTP: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}}}
	defer api.HTTP.CloseIdleConnections()

	var customers []traffic.Customer
	defer func() { // the secrets are gone with this process
		err = errors.Join(err, traffic.Unsubscribe(context.WithoutCancel(ctx), quotas, customers))
	}()
	story, err := traffic.NewStory(ctx, quotas)
	if err != nil {
		return err
	}
	customers = append(customers, story.Customer)
	if err := s.tell(ctx, story, api, quotas, book); err != nil {
		return err
	}
	profiles := traffic.Profiles()
	subscribed, err := traffic.Subscribe(ctx, quotas, profiles)
	customers = append(customers, subscribed...)
	if err != nil {
		return err
	}
	return s.crowd(ctx, profiles, subscribed, api, book)
}

// tell shows one customer's requests, one at a time.
func (s *standalone) tell(ctx context.Context, story *traffic.Story, api traffic.Asker, quotas traffic.Quotas, book *ledger.Reader) error {
	s.out.Say("A new customer, free tier, step by step at %s/v1\n", baseURL(s.cfg.GatewayAddr))
	err := story.Tell(ctx, api, quotas, book, func() {
		if s.out.Terminal() {
			s.out.Draw(story.Lines())
		}
	})
	s.out.Draw(story.Lines())
	s.out.EndTable()
	if err != nil {
		return err
	}
	bills, err := bills(ctx, book, []string{story.Key.ID}, priced)
	if err == nil {
		s.out.Say("\n  ledger: the tokens that are billed, in + out. %s owes %s.", story.User, cmp.Or(bills[len(bills)-1].Cost, "nothing yet: no price"))
	}
	return err
}

// crowd has the users of all tiers send at once, and shows what they are billed.
func (s *standalone) crowd(ctx context.Context, profiles []traffic.Profile, customers []traffic.Customer, api traffic.Asker, book *ledger.Reader) error {
	s.out.Say("\n%.0f seconds of traffic: a customer of each tier, all at once through the gateway\n", s.cfg.Traffic.Seconds())
	var keys, users []string
	for _, c := range customers {
		keys, users = append(keys, c.Key.ID), append(users, c.User)
	}
	tally := traffic.NewTally(profiles)
	v := &view{s: s, tally: tally, planned: s.cfg.Traffic, begin: time.Now(), keys: keys}
	watchCtx, stopWatching := context.WithCancel(ctx)
	defer stopWatching()
	var watchers sync.WaitGroup
	watchers.Go(func() { v.watch(watchCtx, book) })
	watchers.Go(func() { v.show(watchCtx) })
	traffic.Run(ctx, api, profiles, customers, s.cfg.Traffic, tally)
	v.finish(ctx)
	stopWatching()
	watchers.Wait()
	v.last()
	snap := tally.Snapshot()
	if snap.Errors > 0 {
		return fmt.Errorf("%d requests of the sample traffic failed, last: %s", snap.Errors, snap.LastError)
	}
	if ctx.Err() != nil {
		return nil
	}
	return s.showBills(ctx, book, keys, users, snap.Total)
}

// showBills shows what the ledger bills, and holds it against what the answers told their clients.
func (s *standalone) showBills(ctx context.Context, book *ledger.Reader, keys, users []string, told traffic.Row) error {
	all, err := bills(ctx, book, keys, func(all traffic.Bill) bool {
		return priced(all) && all.Input == told.Input && all.Output == told.Output
	})
	if err != nil {
		return err
	}
	slices.SortStableFunc(all[:len(all)-1], func(a, b traffic.Bill) int { return slices.Index(users, a.User) - slices.Index(users, b.User) })
	s.out.Say("\nWhat the ledger bills for that:\n\n%s", strings.Join(traffic.Bills(all, &told), "\n"))
	reasons, err := book.Reasons(ctx, keys)
	if err != nil {
		return err
	}
	var why []string
	for _, r := range reasons {
		why = append(why, r.Name+" "+traffic.Count(r.Requests))
	}
	if len(why) > 0 {
		s.out.Say("\n  why refused: %s", strings.Join(why, ", "))
	}
	if b := all[len(all)-1]; b.Input != told.Input || b.Output != told.Output {
		return fmt.Errorf("the ledger bills %d and %d tokens, the answers told %d and %d", b.Input, b.Output, told.Input, told.Output)
	}
	return nil
}

// priced tells that the ledger has a price for everything: prices come to it by Kafka, too.
func priced(all traffic.Bill) bool { return all.Cost != "" }

// bills waits until the ledger is complete, which is told by what it bills all of the keys together. It may have counted as many events as there were
// answers and yet lack some: a request that was told 503, and so repeated, may have left an event of its own.
func bills(ctx context.Context, book *ledger.Reader, keys []string, complete func(all traffic.Bill) bool) ([]traffic.Bill, error) {
	deadline := time.Now().Add(ledgerWithin)
	for {
		all, err := book.Bills(ctx, keys)
		if err == nil && len(all) == 0 {
			err = errors.New("the ledger has nothing of the sample traffic")
		}
		if err == nil && complete(all[len(all)-1]) || ctx.Err() != nil || time.Now().After(deadline) {
			return all, err
		}
		select {
		case <-time.After(lookEvery):
		case <-ctx.Done():
		}
	}
}

// view shows the traffic while it runs.
type view struct {
	s       *standalone
	tally   *traffic.Tally
	planned time.Duration
	begin   time.Time
	keys    []string

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
func (v *view) watch(ctx context.Context, book *ledger.Reader) {
	var sent history
	for {
		sent.add(v.tally.Snapshot().Events())
		if n, err := book.Events(ctx, v.keys); err == nil {
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
	if !v.s.out.Terminal() {
		v.s.out.Say("")
	}
	v.s.out.Draw(traffic.Table(v.tally.Snapshot(), v.seen(), v.elapsed(), v.planned))
	v.s.out.EndTable()
}
