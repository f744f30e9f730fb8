package replay

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/client"
	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/trace"
)

func TestUsersAreTheSameForTheSameSeedAndFollowZipf(t *testing.T) {
	a, b, c := Users(1, 500, 20_000), Users(1, 500, 20_000), Users(2, 500, 20_000)
	if !slices.Equal(a, b) {
		t.Error("the same seed gives other users")
	}
	if slices.Equal(a, c) {
		t.Error("another seed gives the same users")
	}
	count := make([]int, 500)
	for _, u := range a {
		count[u]++ // panics if out of range
	}
	if !(count[0] > count[1] && count[1] > count[9] && count[9] > count[99]) {
		t.Errorf("no Zipf law: users 0, 1, 9, 99 send %d, %d, %d, %d", count[0], count[1], count[9], count[99])
	}
	if u := Users(1, 1, 10); slices.Max(u) != 0 {
		t.Errorf("one user, but drawn %v", u)
	}
}

// system answers as the real one would: it refuses every third check, and fails where it is told to.
type system struct {
	mu       sync.Mutex
	checks   []time.Time
	users    []string
	granted  map[uuid.UUID]bool
	failAt   int
	slow     time.Duration // of a record
	recordOK int
}

func (s *system) CheckPatiently(_ context.Context, r client.CheckRequest) (client.Decision, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.checks = append(s.checks, time.Now())
	s.users = append(s.users, r.UserID)
	switch n := len(s.checks); {
	case n == s.failAt:
		return client.Decision{}, errors.New("connection refused")
	case n%3 == 0:
		return client.Decision{Reason: "rpm", RequestID: r.RequestID}, nil
	}
	s.granted[r.RequestID] = true
	return client.Decision{Allowed: true, RequestID: r.RequestID, Model: r.Model}, nil
}

func (s *system) Record(_ context.Context, r client.RecordRequest) (client.Receipt, error) {
	<-time.After(s.slow)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.granted[r.RequestID] || r.Outcome != "completed" || r.Model != "m" {
		return client.Receipt{}, errors.New("recorded what was not granted")
	}
	delete(s.granted, r.RequestID)
	s.recordOK++
	return client.Receipt{Success: true}, nil
}

func requests(n int, gap time.Duration) []trace.Request {
	out := make([]trace.Request, n)
	for i := range out {
		out[i] = trace.Request{Offset: time.Duration(i) * gap, InputTokens: int64(i), OutputTokens: 2}
	}
	return out
}

func TestEveryRequestIsCheckedOnceAndEveryAllowedOneRecorded(t *testing.T) {
	s := &system{granted: map[uuid.UUID]bool{}}
	var done int
	var mu sync.Mutex
	cfg := Config{Requests: requests(30, 0), Users: Users(1, 5, 30), Prefix: "p-", Model: "m", Workers: 4}
	a := Run(t.Context(), cfg, s, func(n int) { mu.Lock(); done += n; mu.Unlock() })
	if a.Checks != 30 || a.Allowed != 20 || a.Refused != 10 || a.RefusedBy["rpm"] != 10 || a.Recorded != 20 || a.OutputTokens != 40 {
		t.Errorf("account is %+v", a)
	}
	if done != 30 {
		t.Errorf("progress counted %d of 30", done)
	}
	if f := a.Faults(); len(f) != 0 {
		t.Errorf("faults %v", f)
	}
	for _, u := range s.users {
		if !strings.HasPrefix(u, "p-u0000") {
			t.Fatalf("user is %q", u)
		}
	}
}

func TestSlowRecordsDoNotHoldBackThePace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &system{granted: map[uuid.UUID]bool{}, slow: 7 * time.Second}
		start := time.Now()
		a := Run(t.Context(), Config{Requests: requests(60, time.Minute), Users: make([]int, 60), Model: "m", Speed: 60, Workers: 2}, s, func(int) {})
		for i, at := range s.checks {
			if got, want := at.Sub(start), time.Duration(i)*time.Second; got != want {
				t.Fatalf("check %d began after %s, want %s", i, got, want)
			}
		}
		if a.Recorded != 40 || a.Target != 59*time.Second || a.Behind != 0 || a.Elapsed != 141*time.Second { // 40 records of 7 s, 2 at once, the second from 1 s on
			t.Errorf("account is %+v", a)
		}
	})
}

func TestInterruptedReplayRecordsWhatWasAllowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &system{granted: map[uuid.UUID]bool{}, slow: time.Second}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second+time.Millisecond)
		defer cancel()
		a := Run(ctx, Config{Requests: requests(60, time.Second), Users: make([]int, 60), Model: "m", Speed: 1, Workers: 2}, s, func(int) {})
		if !a.Interrupted || a.Checks != 11 || a.Allowed != 8 || a.Recorded != 8 || len(s.granted) != 0 {
			t.Errorf("account is %+v, %d reservations left open", a, len(s.granted))
		}
		if f := a.Faults(); len(f) != 1 || f[0] != "interrupted after 11 of 60 checks" {
			t.Errorf("faults %q", f)
		}
	})
}

func TestFailedCallsAreFaults(t *testing.T) {
	s := &system{granted: map[uuid.UUID]bool{}, failAt: 2}
	a := Run(t.Context(), Config{Requests: requests(5, 0), Users: make([]int, 5), Model: "m", Workers: 1}, s, func(int) {})
	if a.Errors != 1 || a.ErrorTexts["connection refused"] != 1 || a.Checks != 4 {
		t.Errorf("account is %+v", a)
	}
	if f := a.Faults(); !slices.Equal(f, []string{"1 calls failed", "1 requests got no decision"}) {
		t.Errorf("faults %q", f)
	}
}

func TestDifferencesNameEveryFigure(t *testing.T) {
	want := Totals{Requests: 19366, InputTokens: 22361870, OutputTokens: 4088665}
	got := Totals{Requests: 19367, Rejected: 5, InputTokens: 22361870, OutputTokens: 4088664}
	if d := (Totals{20366, 5, 22361870, 4088665}).Minus(Totals{1000, 5, 0, 0}).Differences(want); d != nil {
		t.Errorf("equal totals differ: %q", d)
	}
	if d := got.Differences(want); !slices.Equal(d, []string{
		"requests: the ledger has 19,367, the replay 19,366 (+1)",
		"rejected requests: the ledger has 5, the replay 0 (+5)",
		"output tokens: the ledger has 4,088,664, the replay 4,088,665 (-1)"}) {
		t.Errorf("differences %q", d)
	}
}

func TestPercentileIsAValueThatOccurred(t *testing.T) {
	ds := make([]time.Duration, 0, 200)
	for i := 200; i >= 1; i-- {
		ds = append(ds, time.Duration(i))
	}
	if l := latencyOf(ds); l != (Latency{P50: 100, P99: 198, Max: 200}) {
		t.Errorf("latency of 1..200 is %+v", l)
	}
	if l := latencyOf([]time.Duration{7}); l != (Latency{7, 7, 7}) {
		t.Errorf("latency of one is %+v", l)
	}
	if l := latencyOf(nil); l != (Latency{}) {
		t.Errorf("latency of none is %+v", l)
	}
}

func TestCommas(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", -1234567: "-1,234,567", 22361870: "22,361,870"} {
		if got := Commas(n); got != want {
			t.Errorf("Commas(%d) is %s, want %s", n, got, want)
		}
	}
}

func TestAccountSaysWhenTheSystemIsSlowerThanThePace(t *testing.T) {
	a := Account{Planned: 10, Checks: 10, Allowed: 6, Refused: 4, RefusedBy: map[string]int64{"rpm": 1, "tpm": 3}, Target: 5 * time.Second, Elapsed: 12 * time.Second, Behind: 6 * time.Second}
	var b bytes.Buffer
	a.Print(&b)
	for _, want := range []string{"tpm 3, rpm 1", "the system is slower, checks began up to 6s late", "of 10 requests in the trace"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in\n%s", want, b.String())
		}
	}
}
