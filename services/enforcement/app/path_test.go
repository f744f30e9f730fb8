package app

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tollgate-dev/tollgate/pkg/embedded/redis"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/testkit/realkafka"
	"github.com/tollgate-dev/tollgate/pkg/tier"
	"github.com/tollgate-dev/tollgate/pkg/usage"
)

func ptr(n int64) *int64 { return &n }

// Case B01 on real Redis over HTTP.
func TestB01RefusedRequestChangesNoCounter(t *testing.T) {
	k := broker(t)
	b := start(t, k.Brokers())
	b.put(t, "u1", "plus", tier.Overrides{RPMLimit: ptr(2), ConcurrentLimit: ptr(1), TPMLimit: ptr(0), TPDLimit: ptr(0)})
	s := run(t, b.config())
	a := uuid.New()
	if v := s.check("u1", a, 10); v["allowed"] != true {
		t.Fatal(v)
	}
	for range 5 {
		if v := s.check("u1", uuid.New(), 10); v["reason"] != "concurrent" || v["retry_after_ms"] != 1000.0 {
			t.Fatal(v)
		}
	}
	if code, v := s.record("u1", a, 10); code != 200 {
		t.Fatal(v)
	}
	c := uuid.New()
	if v := s.check("u1", c, 10); v["allowed"] != true {
		t.Fatal("the refusals were charged: ", v)
	}
	s.record("u1", c, 10)
	if v := s.check("u1", uuid.New(), 10); v["reason"] != "rpm" {
		t.Fatal(v)
	}
	refused, used := 0, 0
	for _, recs := range events(t, k.Brokers(), 8) {
		if recs[0].WasRateLimited {
			refused++
		} else {
			used++
		}
	}
	if refused != 6 || used != 2 {
		t.Errorf("%d refusals and %d usages in the log, want 6 and 2", refused, used)
	}
}

func TestSettlingTwiceChargesOnce(t *testing.T) {
	k := broker(t)
	b := start(t, k.Brokers())
	b.put(t, "u1", "plus", tier.Overrides{TPDLimit: ptr(2000)})
	one, two := run(t, b.config()), run(t, b.config())
	id := uuid.New()
	one.check("u1", id, 1000)
	var wg sync.WaitGroup
	var mu sync.Mutex
	first, ids := 0, map[any]bool{}
	for i := range 20 {
		wg.Go(func() {
			code, v := []*service{one, two}[i%2].record("u1", id, 700)
			mu.Lock()
			defer mu.Unlock()
			if code != 200 {
				t.Errorf("%d %v", code, v)
			}
			if v["already_recorded"] == false {
				first++
			}
			ids[v["event_id"]] = true
		})
	}
	wg.Wait()
	if first != 1 || len(ids) != 1 {
		t.Errorf("%d records say they were the first; event ids %v", first, ids)
	}
	if left := two.remaining("u1", "tokens_1d"); left < 2000-700 || left > 2000-690 {
		t.Errorf("%v left after 700 of 2,000", left)
	}
	if seen := events(t, k.Brokers(), 1); len(seen) != 1 {
		t.Errorf("%d distinct events", len(seen))
	}
}

// On a real broker that stops answering: 503, no charge but the first, and one event id whatever was retried.
func TestRecordAnswersOnlyWhenKafkaHasAcknowledged(t *testing.T) {
	k := realkafka.Start(t)
	k.CreateTopic(t, usage.Topic, usage.Partitions, nil)
	b := start(t, k.Brokers())
	b.put(t, "u1", "plus", tier.Overrides{RPMLimit: ptr(0), TPMLimit: ptr(0), TPDLimit: ptr(20_000)})
	s := run(t, b.config())
	k.Pause(t)
	// The broker's threads stop soon, not at once: until then it acknowledges.
	var id uuid.UUID
	var v map[string]any
	used := 0
	for code := 200; code == 200; used++ {
		id = uuid.New()
		s.check("u1", id, 100)
		if code, v = s.record("u1", id, 70); code != 200 && (code != 503 || v["code"] != "unavailable") {
			t.Errorf("answered %d %v while nobody had the event", code, v)
		}
	}
	if a := s.check("u1", uuid.New(), 30); a["allowed"] != true {
		t.Error("no decisions while Kafka is away: ", a)
	}
	k.Resume(t)
	for deadline := time.Now().Add(30 * time.Second); ; {
		var code int
		if code, v = s.record("u1", id, 9); code == 200 {
			break
		}
		if code != 503 || time.Now().After(deadline) {
			t.Fatal(code, v)
		}
	}
	if v["already_recorded"] != true {
		t.Error(v)
	}
	seen := events(t, k.Brokers(), used)
	recs := seen[uuid.MustParse(v["event_id"].(string))]
	if len(seen) != used || len(recs) == 0 {
		t.Fatalf("%d distinct events of %d requests, %d of the repeated one", len(seen), used, len(recs))
	}
	for _, r := range recs {
		if r != recs[0] || r.InputTokens != 70 || r.ReservedTokens != 100 {
			t.Errorf("a repeat says something else: %+v", r)
		}
	}
	if gone := 20_000 - int(s.remaining("u1", "tokens_1d")); gone > 70*used+30 || gone < 70*used+30-15 { // a token drains every 4.3 s
		t.Errorf("%d tokens are gone after %d records of 70 and a check of 30", gone, used)
	}
}

// The instance that granted it is gone, and so is the caller: another instance tells of it, once, and its tokens stay consumed.
func TestDeadCallersRequestExpiresIntoOneEventWhoeverGrantedIt(t *testing.T) {
	k := broker(t)
	b := start(t, k.Brokers())
	b.put(t, "u1", "plus", tier.Overrides{TPDLimit: ptr(20_000), ConcurrentLimit: ptr(1)})
	cfg := b.config()
	cfg.Lease = time.Second
	granter := run(t, cfg)
	id := uuid.New()
	code, v := granter.send("POST", "/internal/rate-limit/check", fmt.Sprintf(`{"user_id":"u1","model":"grok-2","input_tokens":300,"max_output_tokens":700,"request_id":%q}`, id))
	if code != 200 || v["allowed"] != true {
		t.Fatal(code, v)
	}
	granter.stop()
	if err := <-granter.done; err != nil {
		t.Fatal(err)
	}
	others := []*service{run(t, cfg), run(t, cfg)}
	seen := events(t, k.Brokers(), 1)
	want := usage.EventID(subject.Subject{Kind: subject.User, ID: "u1"}, id, usage.KindUsage)
	for eventID, recs := range seen {
		r := recs[0]
		if eventID != want || len(recs) != 1 || r.Outcome != usage.Expired || !r.Estimated || r.InputTokens != 300 || r.OutputTokens != 700 || r.Reservation != usage.Held || r.RequestedModel != "grok-2" {
			t.Errorf("%s: %+v", eventID, recs)
		}
	}
	if gone := 20_000 - int(others[0].remaining("u1", "tokens_1d")); gone < 990 || gone > 1000 {
		t.Errorf("%d tokens are gone, want the 1000 that were held", gone)
	}
	if a := others[1].check("u1", uuid.New(), 1); a["allowed"] != true {
		t.Errorf("the slot did not return: %v", a)
	}
	if code, v := others[0].record("u1", id, 5); code != 200 || v["already_recorded"] != true || v["event_id"] != want.String() {
		t.Errorf("late record: %d %v", code, v)
	}
}

// The cache of every instance is warm with the old quota, and each change must hold for the first check that starts after it.
func TestUpgradeHoldsOnTheVeryNextCheck(t *testing.T) {
	b := start(t, broker(t).Brokers())
	services := []*service{run(t, b.config()), run(t, b.config()), run(t, b.config())}
	for round := range 15 {
		b.put(t, "u1", "free", tier.Overrides{RPMLimit: ptr(1)})
		id := uuid.New()
		for _, s := range services {
			if v := s.check("u1", id, 1); round == 0 && v["allowed"] != true {
				t.Fatal(v)
			}
		}
		for _, s := range services {
			if v := s.check("u1", uuid.New(), 1); v["reason"] != "rpm" {
				t.Fatalf("round %d: a downgrade did not hold: %v", round, v)
			}
		}
		b.put(t, "u1", "plus", tier.Overrides{RPMLimit: ptr(1000), ConcurrentLimit: ptr(0)})
		for _, s := range services {
			if v := s.check("u1", uuid.New(), 1); v["allowed"] != true || v["quota_version"] != float64(2*round+2) {
				t.Fatalf("round %d: an upgrade did not hold: %v", round, v)
			}
		}
	}
}

// The stop as DESIGN §9 orders it, while a record waits for Kafka and rejections are queued.
func TestStopFinishesWhatItHasBegunInOrder(t *testing.T) {
	k := broker(t)
	b := start(t, k.Brokers())
	b.put(t, "u1", "plus", tier.Overrides{ConcurrentLimit: ptr(1)})
	s := run(t, b.config())
	held, gate := make(chan struct{}, 100), make(chan struct{})
	open := sync.OnceFunc(func() { close(gate) })
	defer open()
	k.Cluster().ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		k.Cluster().KeepControl()
		held <- struct{}{}
		k.Cluster().SleepControl(func() { <-gate })
		return nil, nil, false
	})
	id := uuid.New()
	s.check("u1", id, 10)
	for range 3 {
		s.check("u1", uuid.New(), 10) // refused: no slot
	}
	answered := make(chan int, 1)
	go func() { code, _ := s.record("u1", id, 10); answered <- code }()
	s.awaitGauge("tollgate_events_pending", 1, 5*time.Second) // the record's, not only the rejections, which are held as well
	<-held
	s.stop()
	for deadline := time.Now().Add(5 * time.Second); !slices.Contains(s.logs.parts(), "readiness"); <-time.After(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("readiness was not withdrawn")
		}
	}
	select {
	case code := <-answered:
		t.Fatalf("answered %d before Kafka had the event", code)
	case err := <-s.done:
		t.Fatalf("stopped before the record was answered: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	if got := s.logs.parts(); !slices.Equal(got, []string{"readiness"}) {
		t.Errorf("stopped before what it serves was finished: %v", got)
	}
	open()
	if code := <-answered; code != 200 {
		t.Errorf("the record under way got %d", code)
	}
	if err := <-s.done; err != nil {
		t.Error(err)
	}
	want := []string{"readiness", "http server", "ended reservations", "load", "limiter", "quota changes", "quota cache", "instances", "rejections", "kafka", "redis", "postgres", "traces"}
	if got := s.logs.parts(); !slices.Equal(got, want) {
		t.Errorf("stopped in the order %v,\nwant %v", got, want)
	}
	events(t, k.Brokers(), 4) // one usage, three rejections
}

func TestDecidesBeforeRedisIsThereAndWithItOnceItIs(t *testing.T) {
	b := start(t, broker(t).Brokers())
	early, err := redis.Start(t.Context(), redis.Options{})
	if err != nil {
		t.Fatal(err)
	}
	url := early.URL()
	port := early.Addr[strings.LastIndex(early.Addr, ":")+1:]
	if err := early.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	cfg := b.config()
	cfg.RedisURL, cfg.CheckBudget = url, 50*time.Millisecond
	s := run(t, cfg)
	if code, v := s.send("GET", "/readyz", ""); code != 200 {
		t.Errorf("%d %v", code, v)
	}
	if code, _ := s.send("GET", "/healthz", ""); code != 200 {
		t.Error("not alive")
	}
	id, began := uuid.New(), time.Now()
	if v := s.check("u1", id, 1); v["allowed"] != true || v["degraded"] != true {
		t.Errorf("without Redis: %v", v)
	}
	if d := time.Since(began); d > time.Second {
		t.Errorf("a check took %s without Redis", d)
	}
	late, err := redis.Start(t.Context(), redis.Options{Port: atoi(t, port)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = late.Close(t.Context()) })
	if code, v := s.record("u1", id, 1); code != 200 {
		t.Errorf("record: %d %v", code, v)
	}
	for deadline := time.Now().Add(10 * time.Second); ; <-time.After(20 * time.Millisecond) {
		if v := s.check("u1", uuid.New(), 1); v["degraded"] == false {
			break
		} else if time.Now().After(deadline) {
			t.Fatal(v)
		}
	}
}
