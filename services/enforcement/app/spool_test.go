package app

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/testkit/realkafka"
	"github.com/tollgate-dev/tollgate/pkg/tier"
	"github.com/tollgate-dev/tollgate/pkg/usage"
	"github.com/tollgate-dev/tollgate/services/enforcement/internal/boltspool"
)

// metric gives the sum of a metric's series.
func (s *service) metric(name string) (sum float64) {
	s.t.Helper()
	resp, err := http.Get(s.url + "/metrics")
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	found := false
	for line := range strings.Lines(string(b)) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || (rest[0] != ' ' && rest[0] != '{') {
			continue
		}
		var v float64
		if _, err := fmt.Sscan(rest[strings.LastIndex(rest, " ")+1:], &v); err != nil {
			s.t.Fatal(err)
		}
		sum, found = sum+v, true
	}
	if !found {
		s.t.Errorf("no metric %s", name)
	}
	return sum
}

// Case B81 on a real broker that is stopped in its tracks: every call is answered 200, and its event is in the log once by its id.
func TestB81RecordsAreAnsweredWhileKafkaIsAway(t *testing.T) {
	k := realkafka.Start(t)
	k.CreateTopic(t, usage.Topic, usage.Partitions, nil)
	b := start(t, k.Brokers())
	b.put(t, "u1", "plus", tier.Overrides{RPMLimit: ptr(0), TPMLimit: ptr(0), TPDLimit: ptr(0), ConcurrentLimit: ptr(0)})
	cfg := b.config()
	cfg.SpoolDir = t.TempDir()
	s := run(t, cfg)
	call := func() {
		id := uuid.New()
		s.check("u1", id, 10)
		if code, v := s.record("u1", id, 10); code != 200 {
			t.Errorf("%d %v", code, v)
		}
	}
	call()
	k.Pause(t)
	// The broker's threads stop soon, not at once; the first call that it doesn't answer takes two seconds.
	calls := 1
	for ; s.metric("tollgate_spool_spooled_total") == 0; calls++ {
		call()
	}
	slowest := time.Duration(0)
	for range 200 {
		began := time.Now()
		call()
		slowest = max(slowest, time.Since(began))
	}
	calls += 200
	if slowest > 1500*time.Millisecond { // not a measurement: none of them has waited for Kafka
		t.Errorf("the slowest call took %s", slowest)
	}
	if code, v := s.send("GET", "/readyz", ""); code != 200 {
		t.Errorf("not ready: %v", v)
	}
	if n := s.metric("tollgate_spool_events"); n < 200 || s.metric("tollgate_spool_oldest_seconds") <= 0 || s.metric("tollgate_spool_bytes") < 200*500 {
		t.Errorf("%v events in the spool", n)
	}
	k.Resume(t)
	for deadline := time.Now().Add(30 * time.Second); s.metric("tollgate_spool_events") > 0; <-time.After(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the spool is not drained")
		}
	}
	tokens := int64(0)
	seen := events(t, k.Brokers(), calls)
	for _, recs := range seen {
		tokens += recs[0].InputTokens
		for _, r := range recs {
			if r != recs[0] {
				t.Errorf("two messages of one event differ: %+v", recs)
			}
		}
	}
	if len(seen) != calls || tokens != int64(10*calls) {
		t.Errorf("%d events and %d tokens of %d calls of 10", len(seen), tokens, calls)
	}
	call() // and to Kafka again
	if s.metric("tollgate_spool_events") != 0 {
		t.Error("still spooling")
	}
	t.Logf("slowest call while Kafka was away: %s", slowest)
}

func TestFullSpoolIs503AndSaysSo(t *testing.T) {
	k := broker(t)
	b := start(t, k.Brokers())
	b.put(t, "u1", "plus", tier.Overrides{RPMLimit: ptr(0), TPMLimit: ptr(0), TPDLimit: ptr(0), ConcurrentLimit: ptr(0)})
	cfg := b.config()
	cfg.SpoolDir, cfg.SpoolMax, cfg.KafkaBrokers = t.TempDir(), minSpool, []string{"127.0.0.1:1"}
	s := run(t, cfg)
	var mu sync.Mutex
	var wg sync.WaitGroup
	answered, refused := 0, map[uuid.UUID]string{}
	for range 16 {
		wg.Go(func() {
			for range 200 {
				id := uuid.New()
				code, v := s.record("u1", id, 10)
				mu.Lock()
				if code == 200 {
					answered++
				} else {
					refused[id] = fmt.Sprint(code, v["code"], v["detail"])
				}
				done := len(refused) > 20
				mu.Unlock()
				if done {
					return
				}
			}
		})
	}
	wg.Wait()
	if len(refused) == 0 || s.metric("tollgate_spool_refused_total") == 0 {
		t.Fatalf("%d answered, none refused", answered)
	}
	for _, r := range refused {
		if !strings.HasPrefix(r, "503") || !strings.Contains(r, "spool") || !strings.Contains(r, "unavailable") {
			t.Error(r)
		}
	}
	// The next process finds Kafka, and what was refused is sent without a repeat.
	s.stop()
	if err := <-s.done; err != nil {
		t.Fatal(err)
	}
	cfg.KafkaBrokers = k.Brokers()
	run(t, cfg)
	if seen := events(t, k.Brokers(), answered+len(refused)); len(seen) != answered+len(refused) {
		t.Errorf("%d events of %d records", len(seen), answered+len(refused))
	}
}

func TestSpoolThatIsInUseOrCannotBeWrittenStopsTheStart(t *testing.T) {
	k := broker(t)
	b := start(t, k.Brokers())
	cfg := b.config()
	cfg.SpoolDir = t.TempDir()
	other, err := boltspool.Open(cfg.SpoolDir, boltspool.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := Run(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "TOLLGATE_SPOOL_DIR") || !strings.Contains(err.Error(), "another process") {
		t.Error(err)
	}
	cfg.SpoolDir = "/dev/null/spool"
	if err := Run(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "TOLLGATE_SPOOL_DIR") {
		t.Error(err)
	}
}
