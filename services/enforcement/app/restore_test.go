package app

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/testkit/realredis"
	"github.com/tollgate-dev/tollgate/pkg/tier"
	"github.com/tollgate-dev/tollgate/pkg/usage"
)

// A user, a key of it, a group of models and an org's pool over three shards have each used most of their day. After a loss of Redis each
// has again what was left before, no more and no less, and whoever had nothing waits as long as before.
func TestAfterALossOfRedisNobodyGetsASecondDaysQuota(t *testing.T) {
	k, l := broker(t), newLedger(t)
	b := start(t, k.Brokers())
	b.user(t, "u1", "", tier.Overrides{TPDLimit: ptr(1000), ModelLimits: &[]tier.ModelLimits{{Group: "big", Models: []string{"grok-4"}, TPDLimit: 500}}})
	b.key(t, "k1", "u1", "", tier.Overrides{TPDLimit: ptr(800), Limits: &[]tier.Limit{{Counts: "requests", Window: "1d", Capacity: 5}}})
	b.org(t, tier.Pool{OrgID: "acme", TPDLimit: 3000, Shards: 3})
	b.user(t, "u2", "acme", tier.Overrides{TPDLimit: ptr(2000)})
	b.user(t, "u3", "", tier.Overrides{TPDLimit: ptr(300)})
	s := run(t, b.config())
	use := func(who, model string, tokens int) {
		t.Helper()
		id := uuid.New()
		if v := s.ask(fmt.Sprintf(`%s,"request_id":%q`, who, id), model, tokens); v["allowed"] != true {
			t.Fatal(v)
		}
		if code, v := s.send("POST", "/internal/rate-limit/record", fmt.Sprintf(`{%s,"request_id":%q,"model":%q,"input_tokens":%d,"output_tokens":0,"latency_ms":1,"outcome":"completed"}`,
			who, id, model, tokens)); code != 200 {
			t.Fatal(code, v)
		}
	}
	use(`"user_id":"u1"`, "grok-2", 100)
	use(`"user_id":"u1"`, "grok-4", 450)
	use(`"api_key_id":"k1"`, "grok-2", 300)
	use(`"api_key_id":"k1"`, "grok-2", 50)
	use(`"user_id":"u2"`, "grok-2", 1900)
	use(`"user_id":"u3"`, "grok-2", 300)
	refused := s.ask(`"user_id":"u3"`, "grok-2", 100)
	l.pump(k.Brokers())(6)
	asked := time.Now()

	b.lose(t)
	if v := s.left("user/u1", "tokens_1d"); v != 1000 {
		t.Fatalf("Redis has lost nothing: %v", v)
	}
	if r := b.restoreFrom(t, l); r.Restored != 6 || r.Scopes != 6 { // u1 and its group, k1, u2, u3, acme
		t.Errorf("%+v", r)
	}
	near := func(what string, got, want float64) {
		t.Helper()
		if got < want || got > want+10 { // what drains meanwhile, of 3,000 a day at most
			t.Errorf("%s: %v left, want %v", what, got, want)
		}
	}
	near("u1", s.left("user/u1", "tokens_1d"), 100)
	near("k1", s.left("api_key/k1", "tokens_1d"), 100) // its user has no more
	near("u2", s.left("user/u2", "tokens_1d"), 100)
	if v := s.left("api_key/k1", "requests_1d"); v != 3 {
		t.Errorf("k1 has %v requests left of 5 after 2", v)
	}
	for _, c := range []struct{ who, model, scope string }{
		{`"user_id":"u1"`, "grok-4", "model"}, {`"user_id":"u2"`, "grok-2", "user"}, {`"user_id":"u3"`, "grok-2", "user"}, {`"user_id":"u1"`, "grok-2", "user"},
	} {
		if v := s.ask(c.who, c.model, 130); v["allowed"] != false || v["reason"] != "tpd" && v["reason"] != "request_too_large" || v["scope"] != c.scope {
			t.Errorf("%s, %s: %v", c.who, c.model, v)
		}
	}
	again := s.ask(`"user_id":"u3"`, "grok-2", 100)
	was, _ := refused["retry_after_ms"].(float64)
	is, _ := again["retry_after_ms"].(float64)
	if passed := float64(time.Since(asked).Milliseconds()); was == 0 || is > was || is < was-passed-2000 {
		t.Errorf("u3 waits %v ms, was %v ms %v ms ago", is, was, passed)
	}
	if r := b.restoreFrom(t, l); r.Restored != 0 || r.LeftAlone != 6 {
		t.Errorf("a second time: %+v", r)
	}
	near("u1", s.left("user/u1", "tokens_1d"), 100)
}

// Redis is lost at 60 % of the day's quota, and once more in the midst of traffic, and restored again and again while eight callers go on. Together
// they get what was left of the day, not a request more, and nothing is counted twice.
func TestRestoringUnderTrafficSellsNothingTwiceAndCountsNothingTwice(t *testing.T) {
	const capacity, cost = 1_000_000, 500
	k, l := broker(t), newLedger(t)
	b := start(t, k.Brokers())
	b.user(t, "u1", "", tier.Overrides{TPDLimit: ptr(capacity)})
	s := run(t, b.config())
	settled := l.pump(k.Brokers())
	begin := time.Now()
	if v := s.check("u1", uuid.New(), 1); v["allowed"] != true {
		t.Fatal(v)
	}
	first := uuid.New()
	s.check("u1", first, capacity*6/10)
	s.record("u1", first, capacity*6/10)
	settled(1)

	b.lose(t)
	b.restoreFrom(t, l)
	var sold, events, asked atomic.Int64
	events.Store(1)
	sold.Store(capacity * 6 / 10)
	ended := make(chan struct{})
	var callers, restoring sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for range 60 {
				id := uuid.New()
				if asked.Add(1) == 200 {
					b.lose(t) // of eight requests or so, each somewhere on its way
				}
				if v := s.check("u1", id, cost); v["allowed"] != true {
					return
				}
				if code, v := s.record("u1", id, cost); code != 200 {
					t.Error(code, v)
				}
				sold.Add(cost)
				events.Add(1)
			}
		})
	}
	restoring.Go(func() {
		for {
			select {
			case <-ended:
				return
			default:
				b.restoreFrom(t, l)
			}
		}
	})
	callers.Wait()
	close(ended)
	restoring.Wait()
	settled(int(events.Load()))
	b.restoreFrom(t, l)
	drained := float64(capacity) * time.Since(begin).Hours() / 24
	if left, want := s.remaining("u1", "tokens_1d"), float64(capacity-sold.Load()); left < want-1 || left > want+drained+1 {
		t.Errorf("%v left after %d of %d sold and %v drained", left, sold.Load(), capacity, drained)
	}
	for v := s.check("u1", uuid.New(), cost); v["allowed"] == true; v = s.check("u1", uuid.New(), cost) {
		sold.Add(cost)
	}
	drained = float64(capacity) * time.Since(begin).Hours() / 24
	if n := float64(sold.Load()); n > capacity+drained+1 || n < capacity-cost {
		t.Errorf("sold %v of %d, and %v have drained", n, capacity, drained)
	}
}

// What is on its way while buckets are restored is given back by its own settlement, not out of what was restored.
func TestAReservationThatIsOpenDuringTheRestoreGivesBackItsOwn(t *testing.T) {
	l := newLedger(t)
	b := start(t, broker(t).Brokers())
	b.user(t, "u1", "", tier.Overrides{TPDLimit: ptr(1000)})
	s := run(t, b.config())
	l.add(usedAgo("u1", 0, 600))
	id := uuid.New()
	if v := s.check("u1", id, 300); v["allowed"] != true {
		t.Fatal(v)
	}
	b.restoreFrom(t, l)
	if left := s.remaining("u1", "tokens_1d"); left < 100 || left > 102 {
		t.Errorf("%v left of 1,000 with 600 used and 300 held", left)
	}
	s.record("u1", id, 50)
	if left := s.remaining("u1", "tokens_1d"); left < 350 || left > 352 {
		t.Errorf("%v left of 1,000 with 650 used", left)
	}
}

// Payers of all shards lie on all nodes, none of which knows the script.
func TestRestoreReachesEveryNodeOfACluster(t *testing.T) {
	l := newLedger(t)
	b := start(t, broker(t).Brokers())
	addrs := realredis.StartCluster(t).Addrs()
	b.redis = "redis://" + addrs[0] + "?addr=" + addrs[1] + "&addr=" + addrs[2]
	var err error
	if b.rdb, err = openRedis(b.redis); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.rdb.Close() })
	var rs []usage.Record
	for i := range 300 {
		rs = append(rs, usedAgo(fmt.Sprintf("u%d", i), 0, 40_000))
	}
	l.add(rs...)
	// A node that a call has reached and whose answer was late is asked again, and then has as much already.
	if r := b.restoreFrom(t, l); r.Restored == 0 || r.Restored+r.LeftAlone != 300 {
		t.Errorf("%+v", r)
	}
	s := run(t, b.config())
	for i := range 30 {
		if left := s.remaining(fmt.Sprintf("u%d", 10*i), "tokens_1d"); left < 60_000 || left > 60_100 {
			t.Errorf("u%d has %v left of 100,000 after 40,000", 10*i, left)
		}
	}
	if r, err := CompareBuckets(t.Context(), CompareConfig{RestoreConfig: b.restoreConfig(l)}); err != nil || !r.Agree() || r.Scopes != 300 {
		t.Errorf("%+v, %v", r, err)
	}
}

// The awkward ones, each with 700 of 1,000 used.
func TestEveryKindOfPayerIsRestored(t *testing.T) {
	k, l := broker(t), newLedger(t)
	b := start(t, k.Brokers())
	thousand := tier.Overrides{TPDLimit: ptr(1000)}
	own := func(id string, o tier.Overrides) { t.Helper(); b.user(t, id, "", o) }

	b.user(t, "moved", "a", thousand)
	b.user(t, "moved", "b", thousand)
	b.org(t, tier.Pool{OrgID: "a", TPDLimit: 1000})
	b.org(t, tier.Pool{OrgID: "b", TPDLimit: 1000})
	inA := func(r *usage.Record) { r.OrgID = "a" }
	l.add(usedAgo("moved", 0, 700, inA))

	b.key(t, "orgkey", "", "b", thousand)
	l.add(usedAgo("", 0, 700, func(r *usage.Record) { r.APIKeyID, r.OrgID = "orgkey", "b" }))

	own("suspended", thousand)
	if _, err := b.quotas.PutQuota(t.Context(), suspend("suspended", thousand)); err != nil {
		t.Fatal(err)
	}
	l.add(usedAgo("suspended", 0, 700))

	own("unlimited", tier.Overrides{})
	l.add(usedAgo("unlimited", 0, 700))

	own("lowered", tier.Overrides{TPDLimit: ptr(100_000)})
	own("lowered", thousand)
	l.add(usedAgo("lowered", 0, 3000))

	l.add(usedAgo("unknown", 0, 70_000)) // free: 100,000 a day
	l.add(usedAgo("", 0, 1_000_000, func(r *usage.Record) { r.APIKeyID = "unknown" }))

	own("adjusted", thousand)
	l.add(usedAgo("adjusted", 0, 700), usedAgo("adjusted", 0, -600, func(r *usage.Record) { r.Outcome = usage.Adjustment }))

	own("expired", thousand)
	l.add(usedAgo("expired", 0, 700, func(r *usage.Record) { r.Outcome, r.Estimated = usage.Expired, true }))

	own("refused", thousand)
	l.add(usedAgo("refused", 0, 700), usedAgo("refused", 0, 0, func(r *usage.Record) {
		r.Outcome, r.Reservation, r.WasRateLimited, r.Reason = usage.Rejected, "", true, "tpd"
	}))

	own("repeated", thousand)
	twice := usedAgo("repeated", time.Minute, 700)
	l.add(twice)
	l.add(twice)

	own("ahead", thousand) // by an instance whose clock was an hour ahead
	l.add(usedAgo("ahead", 0, 300), usedAgo("ahead", -time.Hour, 400))

	own("huge", tier.Overrides{TPDLimit: ptr(1_000_000_000_000)})
	l.add(usedAgo("huge", 0, usage.MaxTokens), usedAgo("huge", 0, usage.MaxTokens), usedAgo("huge", time.Second*90, 1, func(r *usage.Record) { r.OutputTokens = usage.MaxTokens - 1 }))

	own("drained", thousand)
	l.add(usedAgo("drained", 20*time.Hour, 700))

	own("half", thousand)
	l.add(usedAgo("half", 12*time.Hour, 900))

	own("always", thousand) // a little faster than it drains, for four days: what was used before a day ago matters
	for i := range 4 * 24 {
		l.add(usedAgo("always", time.Duration(i)*time.Hour, 42))
	}
	l.add(usedAgo("always", 97*time.Hour, 1000))

	own("spread", tier.Overrides{TPDLimit: ptr(1000), Shards: ptr(4)})
	l.add(usedAgo("spread", 0, 700))

	r := b.restoreFrom(t, l)
	s := run(t, b.config())
	for _, c := range []struct {
		who   string
		least float64
	}{
		{"user/moved", 300}, {"api_key/orgkey", 300}, {"user/suspended", 300}, {"user/lowered", 0}, {"user/unknown", 30_000}, {"api_key/unknown", 19_000_000},
		{"user/adjusted", 300}, {"user/expired", 300}, {"user/refused", 300}, {"user/repeated", 300}, {"user/ahead", 300}, {"user/huge", 0}, {"user/drained", 1000},
		{"user/half", 600}, {"user/always", 0}, {"user/spread", 300},
	} {
		slack := max(20, c.least/1000)
		if left := s.left(c.who, "tokens_1d"); left < c.least || left > c.least+slack {
			t.Errorf("%s has %v tokens left, want %v", c.who, left, c.least)
		}
	}
	// Its pool keeps what a member used that has left it, and the new one takes nothing of that.
	if v := s.ask(`"user_id":"moved"`, "grok-2", 290); v["allowed"] != true {
		t.Errorf("moved, in org b, of which 700 are used: %v", v)
	}
	b.user(t, "other", "a", tier.Overrides{})
	if v := s.ask(`"user_id":"other"`, "grok-2", 330); v["allowed"] != false || v["scope"] != "org" {
		t.Errorf("org a, of which 700 are used: %v", v)
	}
	// Nobody is locked out for longer than a window by what a capacity was lowered to.
	if v := s.ask(`"user_id":"lowered"`, "grok-2", 1); v["allowed"] != false || v["retry_after_ms"].(float64) > float64((24*time.Hour+2*time.Minute).Milliseconds()) {
		t.Errorf("lowered: %v", v)
	}
	if r.Drained == 0 || r.Restored < 15 {
		t.Errorf("%+v", r)
	}
	if again := b.restoreFrom(t, l); again.Restored != 0 {
		t.Errorf("again: %+v", again)
	}
}

// A store whose clock is behind the one that was lost: what was used lies in its future, and drains from now on.
func TestAClockThatIsBehindRestoresAllOfIt(t *testing.T) {
	l := newLedger(t)
	b := start(t, broker(t).Brokers())
	b.user(t, "u1", "", tier.Overrides{TPDLimit: ptr(1000)})
	l.add(usedAgo("u1", 2*time.Hour, 200), usedAgo("u1", 0, 500))
	cfg := b.restoreConfig(l)
	cfg.now = func() time.Time { return time.Now().Add(-time.Hour) }
	if r, err := RestoreBuckets(t.Context(), cfg); err != nil || r.Restored != 1 {
		t.Fatal(r, err)
	}
	s := run(t, b.config())
	if left := s.remaining("u1", "tokens_1d"); left < 300+82-2 || left > 300+82+42+2 { // 200 drained for one hour by the replay, and the sum for another since
		t.Errorf("%v left", left)
	}
}

func TestComparisonNamesWhoseBucketHasLessThanTheLedger(t *testing.T) {
	k, l := broker(t), newLedger(t)
	b := start(t, k.Brokers())
	for _, id := range []string{"less", "more", "same", "minute"} {
		b.user(t, id, "", tier.Overrides{TPDLimit: ptr(100_000), RPMLimit: ptr(10)})
		l.add(usedAgo(id, 0, 40_000))
	}
	b.org(t, tier.Pool{OrgID: "acme", TPDLimit: 100_000, Shards: 2})
	b.user(t, "member", "acme", tier.Overrides{})
	l.add(usedAgo("member", 0, 40_000, func(r *usage.Record) { r.OrgID = "acme" }))
	s := run(t, b.config())
	use := func(user string, tokens int) {
		id := uuid.New()
		s.check(user, id, tokens)
		s.record(user, id, tokens)
	}
	use("less", 30_000)
	use("same", 39_500) // within the tolerance of 11 minutes' drain, 763
	use("more", 60_000)
	use("minute", 40_000)
	before := b.rdb.DBSize(t.Context()).Val()
	cfg := CompareConfig{RestoreConfig: b.restoreConfig(l)}
	r, err := CompareBuckets(t.Context(), cfg)
	if err != nil || r.Agree() || r.Different != 2 || len(r.Differences) != 2 || r.Scopes != 5 {
		t.Fatalf("%+v, %v", r, err)
	}
	got := map[string]BucketDifference{}
	for _, d := range r.Differences {
		got[d.Name] = d
	}
	if d := got["user:less"]; d.Limit != "tpd" || d.Scope != "user" || d.Bucket < 29_900 || d.Bucket > 30_000 || d.Ledger < 39_900 || d.Ledger > 40_000 || d.Tolerance != 764 {
		t.Errorf("%+v", d)
	}
	if d := got["org:acme"]; d.Bucket != 0 || !strings.Contains(d.String(), "org org:acme, tpd: bucket 0, ledger ") {
		t.Errorf("%s", d)
	}
	if after := b.rdb.DBSize(t.Context()).Val(); after != before {
		t.Errorf("a comparison left %d keys of %d", after, before)
	}
	cfg.Most = 1
	if r, err := CompareBuckets(t.Context(), cfg); err != nil || r.Different != 2 || len(r.Differences) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	b.restoreFrom(t, l)
	if r, err := CompareBuckets(t.Context(), cfg); err != nil || !r.Agree() {
		t.Errorf("after the restore: %+v, %v", r, err)
	}
}

func TestRestoreTellsItsProgressAndWhatIsWrong(t *testing.T) {
	l := newLedger(t)
	b := start(t, broker(t).Brokers())
	var used []usage.Record
	for i := range 450 {
		used = append(used, usedAgo(fmt.Sprintf("u%d", i), 0, 10))
	}
	l.add(used...)
	var done, total int64
	cfg := b.restoreConfig(l)
	cfg.Progress = func(d, n int64) {
		if d < done || d > n {
			t.Errorf("progress %d of %d after %d", d, n, done)
		}
		done, total = d, n
	}
	if r, err := RestoreBuckets(t.Context(), cfg); err != nil || r.Restored != 450 || done != 450 || total != 450 {
		t.Errorf("%+v, %v; %d of %d", r, err, done, total)
	}
	for what, change := range map[string]func(*RestoreConfig){
		"TOLLGATE_CLICKHOUSE_URL": func(c *RestoreConfig) { c.ClickHouseURL = "clickhouse://u:hidden@\x00" },
		"TOLLGATE_REDIS_URL":      func(c *RestoreConfig) { c.RedisURL = "redis://:hidden@\x00" },
		"lookback":                func(c *RestoreConfig) { c.Lookback = time.Hour },
		"time":                    func(c *RestoreConfig) { c.RedisURL = "redis://:hidden@127.0.0.1:1" },
	} {
		bad := b.restoreConfig(l)
		change(&bad)
		if _, err := RestoreBuckets(t.Context(), bad); err == nil || !strings.Contains(err.Error(), what) || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: %v", what, err)
		}
	}
}
