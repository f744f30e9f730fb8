package traffic

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/client"
	"github.com/tollgate-dev/tollgate/pkg/tier"
)

// system serves what fits three at once of each key, and free keys ten in all.
type system struct {
	mu     sync.Mutex
	open   map[string]int
	served map[string]int
	asked  map[string][]Request
	tier   map[string]string // by user
	owner  map[string]string // of a secret
	live   map[string]bool   // keys, by id
	prices map[string]client.PriceChange
	billed map[uuid.UUID]Billed
	fail   bool
}

func newSystem() *system {
	return &system{open: map[string]int{}, served: map[string]int{}, asked: map[string][]Request{}, tier: map[string]string{}, owner: map[string]string{},
		live: map[string]bool{}, prices: map[string]client.PriceChange{"grok-2": {Input: "7"}}, billed: map[uuid.UUID]Billed{}}
}

func (s *system) begin(secret string, q Request) (a Answer, served bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a = Answer{ID: uuid.New(), Status: http.StatusOK, Input: 5, Output: 3}
	user, known := s.owner[secret]
	free := s.tier[user] == "" || s.tier[user] == tier.Free
	refuse := func(status int, reason string) (Answer, bool) {
		s.billed[a.ID] = Billed{Outcome: "rejected", Reason: reason}
		return Answer{ID: a.ID, Status: status, Code: reason, Wait: time.Second}, false
	}
	s.asked[user] = append(s.asked[user], q)
	switch {
	case !known:
		return Answer{ID: a.ID, Status: http.StatusUnauthorized}, false
	case free && q.Body["model"] == big:
		return refuse(http.StatusForbidden, "model_not_allowed")
	case free && s.served[secret] == 10:
		return refuse(http.StatusTooManyRequests, "rpm")
	case s.open[secret] == 3:
		return refuse(http.StatusTooManyRequests, "concurrent")
	}
	s.open[secret]++
	s.served[secret]++
	s.billed[a.ID] = Billed{Input: 5, Output: 3, Outcome: "completed"}
	return a, true
}

func (s *system) Ask(_ context.Context, secret string, q Request) (Answer, error) {
	if s.fail {
		return Answer{}, errors.New("away")
	}
	a, served := s.begin(secret, q)
	if served {
		time.Sleep(100 * time.Millisecond)
		s.mu.Lock()
		s.open[secret]--
		s.mu.Unlock()
	}
	return a, nil
}

func (s *system) PutQuota(_ context.Context, user string, c client.QuotaChange) (client.Quota, error) {
	s.tier[user] = c.Tier
	return client.Quota{UserID: user, Quota: tier.Quota{Tier: c.Tier}}, nil
}

func (s *system) CreateKey(_ context.Context, k client.NewKey) (client.Key, error) {
	id := "key-" + k.UserID
	s.owner["tg-"+id], s.live[id] = k.UserID, true
	return client.Key{ID: id, UserID: k.UserID, Secret: "tg-" + id}, nil
}

func (s *system) RevokeKey(_ context.Context, id string, _ client.KeyChange) (client.Key, error) {
	delete(s.live, id)
	return client.Key{ID: id}, nil
}

func (s *system) ListPrices(context.Context) (books []client.PriceBook, _ error) {
	for model := range s.prices {
		books = append(books, client.PriceBook{Model: model})
	}
	return books, nil
}

func (s *system) PutPrice(_ context.Context, model string, c client.PriceChange) (client.PriceBook, error) {
	s.prices[model] = c
	return client.PriceBook{Model: model}, nil
}

func (s *system) Billed(_ context.Context, ids []uuid.UUID) (map[uuid.UUID]Billed, error) {
	out := map[uuid.UUID]Billed{}
	for _, id := range ids {
		if b, ok := s.billed[id]; ok {
			out[id] = b
		}
	}
	return out, nil
}

func TestTrafficEndsWithEveryRequestAnsweredAndEveryKeyRevoked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, ps := newSystem(), Profiles()
		cs, err := Subscribe(t.Context(), s, ps)
		if err != nil || len(s.live) != len(ps) {
			t.Fatal(cs, err)
		}
		tally := NewTally(ps)
		begin := time.Now()
		Run(t.Context(), s, ps, cs, 2*time.Second, tally)
		if d := time.Since(begin); d > 3*time.Second {
			t.Errorf("2 s of traffic took %s", d)
		}
		got := tally.Snapshot()
		if got.Errors != 0 || got.Events() != got.Total.Requests || got.Total.Input != 5*got.Total.Served || got.Total.Output != 3*got.Total.Served {
			t.Errorf("%+v", got)
		}
		for user, n := range s.open {
			if n != 0 {
				t.Errorf("%d requests of %s are open", n, user)
			}
		}
		for _, r := range got.Rows {
			if r.Requests == 0 || r.Input == 0 {
				t.Errorf("%s sent nothing: %+v", r.User, r)
			}
		}
		if got.Rows[1].Refused[http.StatusTooManyRequests] == 0 || got.Rows[0].Refused[http.StatusForbidden] == 0 {
			t.Errorf("plus never sent more than three at once, or free never asked for what it hasn't: %+v", got.Rows)
		}
		streams := func(user string) int {
			n := 0
			for _, q := range s.asked[user] {
				if q.Body["stream"] == true {
					n++
				}
			}
			return n
		}
		if streams("demo-free") == 0 || streams("demo-plus") == 0 || streams("demo-enterprise") == 0 {
			t.Error("no streams were asked for")
		}
		if err := Unsubscribe(t.Context(), s, cs); err != nil || len(s.live) != 0 {
			t.Errorf("%v are left, %v", s.live, err)
		}
	})
}

func TestAPriceThatIsThereIsKept(t *testing.T) {
	s := newSystem()
	if err := Price(t.Context(), s); err != nil || s.prices["grok-2"].Input != "7" || s.prices["grok-4"].Input != "5" {
		t.Errorf("%+v, %v", s.prices, err)
	}
}

func TestTheStoryIsToldWithWhatTheLedgerHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem()
		story, err := NewStory(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		shown := 0
		if err := story.Tell(t.Context(), s, s, s, func() { shown = len(story.Lines()) }); err != nil {
			t.Fatal(err)
		}
		lines := story.Lines()
		all := strings.Join(lines, "\n")
		for _, want := range []string{"5 + 3", "403", "no: model", "401", "429, come again in 1.0 s", "no: rpm", "number 7 is too many", "plus"} {
			if !strings.Contains(all, want) {
				t.Errorf("%q is not in\n%s", want, all)
			}
		}
		if last := lines[len(lines)-1]; shown != len(lines) || !strings.Contains(last, "very next request") || !strings.HasSuffix(last, "5 + 3") || strings.Contains(all, "…") {
			t.Errorf("the last of %d shown lines is %q in\n%s", shown, last, all)
		}
		for _, l := range lines {
			if n := utf8.RuneCountInString(l); n > 80 {
				t.Errorf("%d columns: %q", n, l)
			}
		}
	})
}

func TestTheStoryFailsWhereAnAnswerIsNotWhatItShouldBe(t *testing.T) {
	s := newSystem()
	story, err := NewStory(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	s.tier[story.User] = tier.Plus // then nothing is refused
	if err := story.Tell(t.Context(), s, s, s, func() {}); err == nil || !strings.Contains(err.Error(), "want 403") {
		t.Error(err)
	}
}

func TestTrafficIsTheSameAtEveryRun(t *testing.T) {
	for _, p := range Profiles() {
		draw := func() []request {
			r := rand.New(rand.NewPCG(1, 7)) //nolint:gosec // reproducible
			out := make([]request, 50)
			for i := range out {
				out[i] = p.next(r, i)
			}
			return out
		}
		a, b := draw(), draw()
		if !slices.Equal(a, b) {
			t.Fatalf("%s: %+v, then %+v", p.Tier, a, b)
		}
		for i := range a {
			if a[i].output > a[i].maxOutput {
				t.Errorf("%s: request %d uses more than it asks for: %+v", p.Tier, i, a[i])
			}
		}
	}
}

func TestFailedRequestsAreShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, ps := newSystem(), Profiles()
		cs, err := Subscribe(t.Context(), s, ps)
		if err != nil {
			t.Fatal(err)
		}
		s.fail = true
		tally := NewTally(ps)
		Run(t.Context(), s, ps, cs, 100*time.Millisecond, tally)
		lines := Table(tally.Snapshot(), Ledger{}, time.Second, time.Second)
		if last := lines[len(lines)-1]; !strings.Contains(last, "requests failed, last: away") {
			t.Errorf("last line is %q", last)
		}
	})
}

func TestTablesFitEightyColumnsAndTellTheLag(t *testing.T) {
	full := Row{User: "demo-enterprise", Requests: 23456, Served: 23456, Input: 9_999_999, Output: 9_999_999, Refused: map[int]int64{429: 999, 403: 9}}
	total := full
	total.User, total.Refused = "all", map[int]int64{429: 1000}
	s := Snapshot{Rows: []Row{full}, Total: total}
	lines := Table(s, Ledger{Events: 24159, Lag: 1300 * time.Millisecond, Known: true}, 10*time.Second, 10*time.Second)
	lines = append(lines, Bills([]Bill{{User: "demo-enterprise", Requests: 23456, Refused: 1008, Input: 9_999_999, Output: 9_999_999, Cost: "199.123456 USD"}, {User: "all"}}, &total)...)
	for _, l := range lines {
		if n := utf8.RuneCountInString(l); n > 80 {
			t.Errorf("%d columns: %q", n, l)
		}
	}
	all := strings.Join(lines, "\n")
	for _, want := range []string{"429 ×999 403 ×9", "ledger: 297 behind, 1.3 s", "2,345 requests/s", "199.123456 USD", "no price"} {
		if !strings.Contains(all, want) {
			t.Errorf("%q is not in\n%s", want, all)
		}
	}
	if l := Line(s, Ledger{Events: 24456, Known: true}, time.Second, 10*time.Second); !strings.HasSuffix(l, "ledger: up to date") {
		t.Errorf("line is %q", l)
	}
}
