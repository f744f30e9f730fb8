package limittest

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/subject"
)

// Run runs the whole suite.
func Run(t *testing.T, f Factory) {
	for _, c := range []struct {
		name string
		test func(*world)
	}{
		{"RefusedRequestChangesNoCounter", refusedChangesNothing},
		{"RefusalByConcurrencyLeavesTheRequestBucket", b01},
		{"SettleBelowReservationFreesTheDifference", b03},
		{"SettleTwiceChargesOnce", settleTwice},
		{"OveruseBecomesDebtThatTheDrainPays", debt},
		{"RecordOfAnUnknownRequestIsDebitedOnce", unknown},
		{"GrantedIDAskedAgainChargesOnce", repeatedCheck},
		{"DryRunConsumesNothing", dryRun},
		{"WaitingRetryAfterAlwaysSucceeds", retryExact},
		{"CostAboveACapacityIsRefusedForGood", tooLarge},
		{"UpgradeGivesRoomAtOnceAndDowngradeKeepsConsumption", tierChange},
		{"TogglingCapacityGivesNoTokens", toggling},
		{"LiftedLimitKeepsItsConsumption", liftedLimit},
		{"CrashedCallersSlotReturnsExactlyAtLeaseExpiry", leaseExpiry},
		{"TimeRunningBackwardsCreditsNothing", backwards},
		{"PollingDoesNotStarveTheDrain", polling},
		{"TightestScopeWinsAndIsNamed", scopesTogether},
		{"LimitsAreData", otherLimits},
		{"OlderVersionIsRefusedAfterAPublish", fence},
		{"EmittedReservationForgetsItsMeta", emitted},
		{"HugeNumbersAreExact", huge},
		{"SubjectsWithTheSameRequestIDDoNotMeet", sameID},
		{"ConsumeDrawsFromTheReservationFirst", consumeReserved},
		{"StreamStopsWhenNothingIsLeft", consumeStops},
		{"ConsumeRenewsTheLease", consumeRenews},
		{"CancelledCheckLeavesNothing", cancelTakesBack},
		{"EightShardsSellAllThatThereIsAndNoMore", spreadSellsAll},
		{"EightShardsLendForARequestLargerThanAShare", spreadLendsForLarge},
		{"EightShardsRefusalLeavesNothingLent", spreadRefusalChangesNothing},
		{"EightShardsLendSlotsAndTakeThemBack", spreadSlots},
		{"EightShardsGiveAllSlotsOfKeyAndUser", spreadTwoSlots},
		{"EightShardsHaveBackWhatWasLentAndNotUsed", spreadUnusedGoesBack},
		{"EightShardsPayForAStreamUntilNothingIsLeft", spreadConsumes},
		{"EightShardsSellNoMoreThanThereIsToShareOut", spreadFewerThanShards},
		{"EightShardsCountALoanOnceUnderContention", spreadContended},
		{"EightShardsBearOveruseTogether", spreadDebt},
		{"ConsumeWithinTheReservationWaitsForNoDebt", consumeInDebt},
		{"LeasesOfOneSecondAreCountedOneByOne", leasesOfOneSecond},
		{"ConsumeOfAnEndedOrUnknownReservationDrawsNothing", consumeEnded},
		{"ConsumeObeysTheFence", consumeFenced},
		{"SettleByAnOldQuotaPutsBackNoOldCapacity", settleKeepsCapacity},
		{"DeadCallersReservationExpiresOnce", expiry},
		{"SettledUsageIsOfferedUntilItIsDurable", unemitted},
		{"RepeatTellsWhatIsHeld", repeatTellsWhatIsHeld},
		{"WhateverIsAskedTheBoundHoldsAndTheAdvisedWaitHelps", properties},
		{"ConsumedIsSettledAndHeldAndAReplayChangesNothing", conservation},
		{"RacingChecksNeverPassTheBound", race},
		{"RacingSettlesChargeOnce", raceSettle},
		{"WhatWasUsedLongAgoIsDebitedAsFarAsItHasNotDrained", settleLate},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(newWorld(t, f)) })
	}
}

func refusedChangesNothing(w *world) {
	// One dimension after the other is used up; a request that it refuses must leave all others as they were.
	for _, c := range []struct {
		reason string
		s      limit.Scope
		first  int64
	}{
		{rpm, scope(1, 1000, 10_000, 5), 10}, {tpm, scope(100, 1000, 10_000, 5), 995}, {tpd, scope(100, 100_000, 1000, 5), 995},
		{limit.ReasonConcurrent, scope(100, 1000, 10_000, 1), 10},
	} {
		c.s.Name = "user:" + c.reason
		d, _ := w.check(c.first, c.s)
		w.wantAllowed(d)
		before := w.left(c.s)
		for range 5 {
			d, _ = w.check(10, c.s)
			w.wantRefused(d, c.reason)
			if d.Scope != limit.ScopeUser || d.RetryAfter <= 0 {
				w.t.Errorf("%s: scope %q, retry after %s", c.reason, d.Scope, d.RetryAfter)
			}
		}
		if after := w.left(c.s); !maps.Equal(before, after) {
			w.t.Errorf("%s: a refusal changed %v into %v", c.reason, before, after)
		}
	}
}

func b01(w *world) {
	s := scope(2, 0, 0, 1)
	a, id := w.check(1, s)
	w.wantAllowed(a)
	for range 5 {
		b, _ := w.check(1, s)
		w.wantRefused(b, limit.ReasonConcurrent)
		if b.RetryAfter != limit.SlotHint {
			w.t.Errorf("retry after %s, want the fixed hint", b.RetryAfter)
		}
	}
	w.settle(id, 1, s)
	c, id := w.check(1, s)
	w.wantAllowed(c)
	w.settle(id, 1, s)
	d, _ := w.check(1, s)
	w.wantRefused(d, rpm)
}

func b03(w *world) {
	s := scope(0, 1000, 0, 0)
	d, id := w.check(1000, s)
	w.wantAllowed(d)
	if got := w.left(s)[tpm]; got != 0 {
		w.t.Fatalf("remaining %d while the whole is reserved", got)
	}
	if st := w.settle(id, 200, s); st.Status != limit.Settled || st.Reserved[limit.Tokens] != 1000 || st.CheckMeta != "check meta" {
		w.t.Errorf("settlement %+v", st)
	}
	if got := w.left(s)[tpm]; got != 800 {
		w.t.Errorf("remaining %d, want 800", got)
	}
	d, _ = w.check(700, s)
	w.wantAllowed(d)
	// A refund after much has drained doesn't make more than a full bucket.
	w.clock.Add(10 * time.Minute)
	d, id = w.check(1000, s)
	w.wantAllowed(d)
	w.clock.Add(30 * time.Second)
	w.settle(id, 0, s)
	if got := w.left(s)[tpm]; got != 1000 {
		w.t.Errorf("remaining %d, want 1000", got)
	}
}

func settleTwice(w *world) {
	s := scope(10, 1000, 0, 3)
	_, id := w.check(100, s)
	w.settle(id, 150, s)
	before := w.left(s)
	for range 3 {
		again := w.settle(id, 999, s)
		if again.Status != limit.AlreadySettled || again.Meta != "settle meta" || again.Reserved[limit.Tokens] != 100 {
			w.t.Errorf("second settle: %+v", again)
		}
	}
	if after := w.left(s); !maps.Equal(before, after) || after[tpm] != 850 || after["open"] != 0 {
		w.t.Errorf("from %v to %v", before, after)
	}
	// Once its event is durable, the tombstone's time runs; then the id is unknown again.
	if err := w.Limiter.MarkEmitted(context.Background(), w.shard, w.user, id); err != nil {
		w.t.Fatal(err)
	}
	w.clock.Add(limit.DefaultTombstone - time.Millisecond)
	if st := w.settle(id, 1, s); st.Status != limit.AlreadySettled {
		w.t.Errorf("within the tombstone: %+v", st)
	}
	w.clock.Add(time.Millisecond)
	if st := w.settle(id, 1, s); st.Status != limit.Unknown {
		w.t.Errorf("after the tombstone: %+v", st)
	}
}

func debt(w *world) {
	s := scope(0, 1000, 0, 0)
	_, id := w.check(100, s)
	w.settle(id, 3000, s)
	if got := w.left(s)[tpm]; got != 0 {
		w.t.Errorf("remaining %d, want 0, never negative", got)
	}
	d, _ := w.check(1, s)
	w.wantRefused(d, tpm)
	if want := 2001 * 60 * time.Millisecond; d.RetryAfter != want {
		w.t.Errorf("retry after %s, want %s: the debt is paid by the drain", d.RetryAfter, want)
	}
}

func unknown(w *world) {
	s, id := scope(10, 1000, 0, 1), uuid.New()
	st := w.settle(id, 300, s)
	if st.Status != limit.Unknown || !st.CheckedAt.IsZero() {
		w.t.Errorf("settlement %+v", st)
	}
	if got := w.left(s); got[tpm] != 700 || got[rpm] != 9 || got["open"] != 0 {
		w.t.Errorf("left %v", got)
	}
	if st := w.settle(id, 300, s); st.Status != limit.AlreadySettled || !st.CheckedAt.IsZero() {
		w.t.Errorf("repeat: %+v", st)
	}
	if got := w.left(s); got[tpm] != 700 {
		w.t.Errorf("left %v after the repeat", got)
	}
}

func repeatedCheck(w *world) {
	s, id := scope(2, 1000, 0, 2), uuid.New()
	first := w.checkID(id, 100, s)
	w.wantAllowed(first)
	w.clock.Add(time.Second)
	for range 4 {
		again := w.checkID(id, 100, s)
		w.wantAllowed(again)
		if !again.Repeated || !again.LeaseUntil.Equal(first.LeaseUntil) || again.Scopes[0].InUse != 1 {
			w.t.Errorf("repeat: %+v", again)
		}
	}
	w.settle(id, 100, s)
	if d := w.checkID(id, 100, s); !d.Repeated {
		w.t.Errorf("a settled id was charged again: %+v", d)
	}
	// A refused id is not remembered.
	d, _ := w.check(900, s)
	w.wantAllowed(d)
	id = uuid.New()
	w.wantRefused(w.checkID(id, 900, s), tpm)
	w.clock.Add(time.Minute)
	if d := w.checkID(id, 900, s); !d.Allowed || d.Repeated {
		w.t.Errorf("a refused id, asked again with room: %+v", d)
	}
}

func dryRun(w *world) {
	s := scope(2, 1000, 0, 1)
	r := w.request(uuid.New(), 300, []limit.Scope{s})
	r.DryRun = true
	for range 3 {
		d, err := w.Limiter.Check(context.Background(), r)
		if err != nil || !d.Allowed || d.Repeated || d.Scopes[0].Limits[1].Remaining != 700 || d.Scopes[0].InUse != 1 || !d.LeaseUntil.IsZero() {
			w.t.Fatalf("%+v, %v", d, err)
		}
	}
	if got := w.left(s); got[rpm] != 2 || got[tpm] != 1000 || got["open"] != 0 {
		w.t.Errorf("left %v", got)
	}
	if st := w.settle(r.RequestID, 0, s); st.Status != limit.Unknown {
		w.t.Errorf("a dry run left a reservation: %+v", st)
	}
}

func retryExact(w *world) {
	s := scope(7, 1000, 0, 0)
	for round := range int64(50) {
		tokens := 1 + (round*37)%250
		d, _ := w.check(tokens, s)
		for d.Allowed {
			d, _ = w.check(tokens, s)
		}
		w.clock.Add(d.RetryAfter - time.Millisecond)
		early, _ := w.check(tokens, s)
		if early.Allowed || early.RetryAfter != time.Millisecond {
			w.t.Fatalf("round %d: 1 ms before the time: %+v", round, early)
		}
		w.clock.Add(time.Millisecond)
		d, _ = w.check(tokens, s)
		w.wantAllowed(d)
	}
	// B56: with 100 left of 1000 a minute, a request of 250 waits for 150 tokens: 9 s.
	s2 := scope(0, 1000, 0, 0)
	s2.Name = "user:b56"
	w.check(900, s2)
	d, _ := w.check(250, s2)
	if d.RetryAfter != 9*time.Second {
		w.t.Errorf("retry after %s, want 9s", d.RetryAfter)
	}
	if at := d.Scopes[0].Limits[0].ResetAt.Sub(d.At); at != 54*time.Second {
		w.t.Errorf("full again in %s, want 54s", at)
	}
}

func tooLarge(w *world) {
	s := scope(10, 1000, 500, 1)
	w.check(1, s)
	d, _ := w.check(501, s)
	w.wantRefused(d, limit.ReasonRequestTooLarge)
	if d.RetryAfter != 0 || d.Scope != limit.ScopeUser {
		w.t.Errorf("%+v", d)
	}
}

func tierChange(w *world) {
	free, plus := scope(10, 0, 0, 0), scope(40, 0, 0, 0)
	for range 10 {
		d, _ := w.check(1, free)
		w.wantAllowed(d)
	}
	d, _ := w.check(1, free)
	w.wantRefused(d, rpm)
	d, _ = w.check(1, plus)
	w.wantAllowed(d)
	if got := w.left(plus)[rpm]; got != 29 {
		w.t.Errorf("remaining %d, want 29", got)
	}
	for range 29 {
		w.check(1, plus)
	}
	// 40 consumed, back on free: nothing is given, and the excess is gone within one window.
	d, _ = w.check(1, free)
	w.wantRefused(d, rpm)
	if d.RetryAfter > time.Minute+6*time.Second {
		w.t.Errorf("locked out for %s, want at most a window and one request's wait", d.RetryAfter)
	}
	wait := d.RetryAfter
	w.clock.Add(wait - time.Millisecond)
	d, _ = w.check(1, free)
	w.wantRefused(d, rpm)
	w.clock.Add(time.Millisecond)
	d, _ = w.check(1, free)
	w.wantAllowed(d)
}

func toggling(w *world) {
	a, b := scope(0, 100, 0, 0), scope(0, 101, 0, 0)
	d, _ := w.check(100, a)
	w.wantAllowed(d)
	admitted := int64(0)
	for i := range 40 {
		s := a
		if i%2 == 1 {
			s = b
		}
		w.clock.Add(100 * time.Millisecond)
		for {
			d, _ := w.check(1, s)
			if !d.Allowed {
				break
			}
			admitted++
		}
	}
	if most := int64(4*101/60 + 1); admitted > most { // 4 s at the better rate, and its one token more
		w.t.Errorf("admitted %d in 4 s, want at most %d", admitted, most+1)
	}
}

func liftedLimit(w *world) {
	w.check(1000, scope(0, 0, 1000, 0))
	d, _ := w.check(5000, scope(10, 0, 0, 0)) // tpd is unlimited for a while
	w.wantAllowed(d)
	d, _ = w.check(1, scope(10, 0, 1000, 0))
	w.wantRefused(d, tpd)
}

func leaseExpiry(w *world) {
	s := scope(0, 0, 0, 1)
	r := w.request(uuid.New(), 1, []limit.Scope{s})
	r.Lease = 30 * time.Second
	d, err := w.Limiter.Check(context.Background(), r)
	if err != nil || !d.LeaseUntil.Equal(d.At.Add(r.Lease)) {
		w.t.Fatalf("%+v, %v", d, err)
	}
	w.clock.Add(r.Lease - time.Millisecond)
	d, _ = w.check(1, s)
	w.wantRefused(d, limit.ReasonConcurrent)
	w.clock.Add(time.Millisecond)
	d, _ = w.check(1, s)
	w.wantAllowed(d)
	// The late record of the first frees nothing that is not its own.
	if st := w.settle(r.RequestID, 1, s); st.Status != limit.Settled {
		w.t.Errorf("late record: %+v", st)
	}
	d, _ = w.check(1, s)
	w.wantRefused(d, limit.ReasonConcurrent)
}

func backwards(w *world) {
	s := scope(0, 1000, 0, 0)
	w.check(1000, s)
	w.clock.Add(-time.Hour)
	d, _ := w.check(10, s)
	w.wantRefused(d, tpm)
	if want := time.Hour + 600*time.Millisecond; d.RetryAfter != want {
		w.t.Errorf("retry after %s, want %s", d.RetryAfter, want)
	}
	w.clock.Add(time.Hour)
	d, _ = w.check(1, s)
	w.wantRefused(d, tpm)
	w.clock.Add(600 * time.Millisecond)
	d, _ = w.check(10, s)
	w.wantAllowed(d)
	d, _ = w.check(1, s)
	w.wantRefused(d, tpm)
}

func polling(w *world) {
	s := scope(0, 1000, 0, 0) // one token in 60 ms
	w.check(1000, s)
	admitted := 0
	for range 600 {
		w.clock.Add(time.Millisecond)
		if d, _ := w.check(1, s); d.Allowed {
			admitted++
		}
	}
	if admitted != 10 {
		w.t.Errorf("admitted %d in 600 ms of polling, want 10", admitted)
	}
}

func scopesTogether(w *world) {
	key := limit.Scope{Kind: limit.ScopeKey, Name: "api_key:k1", Limits: []limit.Limit{{Counted: limit.Tokens, Capacity: 600, Window: time.Minute}}}
	user := limit.Scope{Kind: limit.ScopeUser, Name: "user:u1", Limits: []limit.Limit{{Counted: limit.Tokens, Capacity: 300, Window: time.Minute}}}
	org := limit.Scope{Kind: limit.ScopeOrg, Name: "org:o1", Limits: []limit.Limit{{Counted: limit.Tokens, Capacity: 1000, Window: time.Minute}}}
	for range 3 {
		d, _ := w.check(100, key, user, org)
		w.wantAllowed(d)
	}
	d, _ := w.check(100, key, user, org)
	w.wantRefused(d, tpm)
	if d.Scope != limit.ScopeUser {
		w.t.Errorf("scope %s refused, want user", d.Scope)
	}
	if got := w.left(key)[tpm]; got != 300 {
		w.t.Errorf("the key has %d left, want 300: a refusal by the user's scope charged it", got)
	}
	admitted := 0
	for {
		d, _ = w.check(100, org)
		if !d.Allowed {
			break
		}
		admitted++
	}
	if admitted != 7 || d.Scope != limit.ScopeOrg {
		w.t.Errorf("the org admitted %d more, refused by %s; want 7, org", admitted, d.Scope)
	}
}

func otherLimits(w *world) {
	s := limit.Scope{Kind: limit.ScopeUser, Name: "user:u1", Limits: []limit.Limit{{Counted: limit.Requests, Capacity: 3, Window: 24 * time.Hour},
		{Counted: limit.InputTokens, Capacity: 100, Window: time.Minute}, {Counted: limit.OutputTokens, Capacity: 50, Window: time.Minute}}}
	ask := func(in, out int64) limit.Decision {
		r := w.request(uuid.New(), 0, []limit.Scope{s})
		r.Cost = limit.Usage(in, out)
		d, err := w.Limiter.Check(context.Background(), r)
		if err != nil {
			w.t.Fatal(err)
		}
		return d
	}
	w.wantAllowed(ask(90, 10))
	w.wantRefused(ask(20, 10), "itpm")
	w.wantRefused(ask(5, 45), "otpm")
	w.wantAllowed(ask(5, 5))
	w.wantAllowed(ask(1, 1))
	w.wantRefused(ask(1, 1), "rpd")
}

func fence(w *world) {
	ctx, s := context.Background(), scope(1, 0, 0, 0)
	r := w.request(uuid.New(), 1, []limit.Scope{s})
	r.Fences = []limit.Fence{{Name: "user:u1", Version: 6}, {Name: "tier:plus", Version: 2}}
	if err := w.Publish(ctx, w.shard, "tier:plus", 2); err != nil {
		w.t.Fatal(err)
	}
	if err := w.Publish(ctx, w.shard, "user:u1", 7); err != nil {
		w.t.Fatal(err)
	}
	var stale *limit.StaleError
	if _, err := w.Limiter.Check(ctx, r); !errors.As(err, &stale) || stale.Name != "user:u1" || stale.Published != 7 {
		w.t.Fatalf("got %v, want a stale version", err)
	}
	if _, err := w.Limiter.Status(ctx, limit.StatusRequest{Shard: w.shard, Scopes: r.Scopes, Fences: r.Fences}); !errors.As(err, &stale) || stale.Published != 7 {
		w.t.Errorf("status: got %v, want a stale version", err)
	}
	if got := w.left(s); got[rpm] != 1 || got["open"] != 0 {
		w.t.Errorf("a stale check consumed: %v", got)
	}
	r.Fences[0].Version = 7
	d, err := w.Limiter.Check(ctx, r)
	if err != nil {
		w.t.Fatal(err)
	}
	w.wantAllowed(d)
}

func emitted(w *world) {
	ctx, s := context.Background(), scope(0, 1000, 0, 0)
	_, id := w.check(1, s)
	if err := w.Limiter.MarkEmitted(ctx, w.shard, w.user, id); err != nil { // not settled yet: nothing to note
		w.t.Fatal(err)
	}
	w.settle(id, 1, s)
	if st := w.settle(id, 1, s); st.Emitted || st.Meta != "settle meta" || st.CheckMeta != "check meta" {
		w.t.Errorf("before: %+v", st)
	}
	for range 2 {
		if err := w.Limiter.MarkEmitted(ctx, w.shard, w.user, id); err != nil {
			w.t.Fatal(err)
		}
		if st := w.settle(id, 1, s); !st.Emitted || st.Meta != "" || st.Status != limit.AlreadySettled {
			w.t.Errorf("after: %+v", st)
		}
	}
	if err := w.Limiter.MarkEmitted(ctx, w.shard, w.user, uuid.New()); err != nil {
		w.t.Errorf("an unknown one: %v", err)
	}
}

func huge(w *world) {
	const most = limit.MaxAmount
	s := scope(0, most, 1_000_000_000_000, 0)
	d, id := w.check(999_999_999_999, s)
	w.wantAllowed(d)
	if got := w.left(s); got[tpd] != 1 || got[tpm] != most-999_999_999_999 {
		w.t.Errorf("left %v", got)
	}
	w.clock.Add(time.Millisecond) // tpd drains 11574.074… tokens in it
	if got := w.left(s); got[tpd] != 11_575 {
		w.t.Errorf("left %v", got)
	}
	w.settle(id, most, s)
	d, _ = w.check(1, s)
	w.wantRefused(d, tpd)
	if got := w.left(s); got[tpd] != 0 {
		w.t.Errorf("left %v", got)
	}
}

func sameID(w *world) {
	s, id := scope(10, 1000, 0, 2), uuid.New()
	w.checkID(id, 100, s)
	other := limit.Scope{Kind: limit.ScopeUser, Name: "user:u2", Limits: s.Limits, Slots: 2}
	r := w.request(id, 100, []limit.Scope{other})
	r.Subject = subject.Subject{Kind: subject.User, ID: "u2"}
	d, err := w.Limiter.Check(context.Background(), r)
	if err != nil || d.Repeated || !d.Allowed {
		w.t.Fatalf("%+v, %v", d, err)
	}
	if st := w.settle(id, 0, s); st.Status != limit.Settled {
		w.t.Errorf("%+v", st)
	}
	if got := w.left(other); got["open"] != 1 {
		w.t.Errorf("settling u1's request ended u2's: %v", got)
	}
}

func race(w *world) {
	s := scope(200, 10_000, 0, 50)
	var allowed, refused atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 25 {
				id := uuid.New()
				d, err := w.Limiter.Check(context.Background(), w.request(id, 60, []limit.Scope{s}))
				if err != nil {
					w.t.Error(err)
					return
				}
				if d.Allowed {
					allowed.Add(1)
				} else {
					refused.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if allowed.Load() != 50 || refused.Load() != 350 {
		w.t.Errorf("allowed %d, refused %d; want 50 and 350", allowed.Load(), refused.Load())
	}
	if got := w.left(s); got[rpm] != 150 || got[tpm] != 7000 || got["open"] != 50 {
		w.t.Errorf("left %v", got)
	}
}

func raceSettle(w *world) {
	s := scope(0, 100_000, 0, 0)
	_, id := w.check(1000, s)
	var settled atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			st, err := w.Limiter.Settle(context.Background(), limit.SettleRequest{Shard: w.shard, Subject: w.user, RequestID: id, Scopes: []limit.Scope{s}, Actual: limit.Usage(500, 0), Meta: strings.Repeat("m", 600)})
			if err != nil {
				w.t.Error(err)
			}
			if st.Status == limit.Settled {
				settled.Add(1)
			}
		})
	}
	wg.Wait()
	if got := w.left(s)[tpm]; settled.Load() != 1 || got != 99_500 {
		w.t.Errorf("%d settles counted, %d left; want 1 and 99500", settled.Load(), got)
	}
}

// What was used some time ago, and nothing was held for, is debited as far as a burst of that age has not drained; what was held is settled as ever.
func settleLate(w *world) {
	s := scope(600, 60_000, 86_400, 0)
	late := func(id uuid.UUID, age time.Duration, tokens int64) {
		w.t.Helper()
		if _, err := w.Limiter.Settle(context.Background(), limit.SettleRequest{Shard: w.shard, Subject: w.user, RequestID: id, Scopes: []limit.Scope{s},
			Actual: limit.Usage(tokens, 0), Meta: "settle meta", Age: age}); err != nil {
			w.t.Fatal(err)
		}
	}
	wants := func(tokens, requests, aDay int64) {
		w.t.Helper()
		if got := w.left(s); got[tpm] != 60_000-tokens || got[rpm] != 600-requests || got[tpd] != 86_400-aDay {
			w.t.Errorf("left %v, want %d tokens of the minute gone, %d requests, %d tokens of the day", got, tokens, requests, aDay)
		}
	}
	late(uuid.New(), 15*time.Second, 1000)
	wants(750, 1, 1000)
	late(uuid.New(), time.Hour, 2400)
	wants(750, 1, 3300)
	late(uuid.New(), 59_999*time.Millisecond, 1)
	wants(751, 1, 3301)
	_, id := w.check(500, s)
	late(id, 30*time.Second, 400)
	wants(1151, 2, 3701)
	for range 40 { // 40 small ones of half a window's age are half of them
		late(uuid.New(), 30*time.Second, 1)
	}
	wants(1171, 22, 3741)
	if _, err := w.Limiter.Settle(context.Background(), limit.SettleRequest{Shard: w.shard, Subject: w.user, RequestID: uuid.New(), Scopes: []limit.Scope{s}, Age: -1}); err == nil {
		w.t.Error("a negative age is taken")
	}
}
