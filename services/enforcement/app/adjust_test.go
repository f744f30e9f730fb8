package app

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/testkit/realkafka"
	"github.com/tollgate-dev/tollgate/pkg/tier"
	"github.com/tollgate-dev/tollgate/pkg/usage"
)

const adminOfThisTest = "admin-token-canary"

func (s *service) adjust(token string, id, corrects uuid.UUID) (int, map[string]any) {
	s.t.Helper()
	return s.sendAs(token, "POST", "/internal/adjustments", fmt.Sprintf(
		`{"adjustment_id":%q,"corrects_event_id":%q,"user_id":"u1","model":"grok-2","output_tokens":-5,"timestamp":"2026-01-01T12:00:00Z","reason":"counted twice"}`, id, corrects))
}

// On a real broker that is stopped in its tracks: a correction is answered from the spool, is in the log once by its id when the broker is back, and
// takes nothing from anybody's bucket. Nobody but an admin leaves an event.
func TestAdjustmentIsDurableWhileKafkaIsAway(t *testing.T) {
	k := realkafka.Start(t)
	k.CreateTopic(t, usage.Topic, usage.Partitions, nil)
	b := start(t, k.Brokers())
	b.put(t, "u1", "plus", tier.Overrides{TPDLimit: ptr(2000)})
	cfg := b.config()
	cfg.AdminToken, cfg.SpoolDir = adminOfThisTest, t.TempDir()
	s := run(t, cfg)
	request := uuid.New()
	s.check("u1", request, 100)
	_, recorded := s.record("u1", request, 100)
	corrects, err := uuid.Parse(fmt.Sprint(recorded["event_id"]))
	if err != nil {
		t.Fatal(recorded)
	}
	left := s.remaining("u1", "tokens_1m")
	ids := []uuid.UUID{uuid.New(), uuid.New()}
	events1 := map[any]bool{}
	adjust := func(id uuid.UUID) {
		t.Helper()
		code, v := s.adjust(adminOfThisTest, id, corrects)
		if code != 200 || v["success"] != true {
			t.Errorf("%d %v", code, v)
		}
		events1[v["event_id"]] = true
	}
	adjust(ids[0])
	if code, _ := s.adjust(token, uuid.New(), corrects); code != 403 {
		t.Errorf("a service token: %d", code)
	}
	if code, _ := s.adjust("guessed-token", uuid.New(), corrects); code != 401 {
		t.Errorf("an unknown token: %d", code)
	}
	k.Pause(t)
	for range 5 { // repeats, of which at least the last ones meet no Kafka
		adjust(ids[1])
	}
	if s.metric("tollgate_spool_events") == 0 {
		t.Error("nothing is in the spool: this proves nothing")
	}
	k.Resume(t)
	for deadline := time.Now().Add(30 * time.Second); s.metric("tollgate_spool_events") > 0; <-time.After(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the spool is not drained")
		}
	}
	seen := events(t, k.Brokers(), 3)
	if len(seen) != 3 || len(events1) != 2 {
		t.Errorf("%d events in the log, want 3; %d ids were answered, want 2", len(seen), len(events1))
	}
	for id, recs := range seen {
		r := recs[0]
		if r.Outcome == usage.Adjustment && (!events1[id.String()] || r.CorrectsEventID != corrects || r.OutputTokens != -5 || r.UserID != "u1" || r.Tier != "plus") {
			t.Errorf("%+v", r)
		}
	}
	if now := s.remaining("u1", "tokens_1m"); now < left {
		t.Errorf("%v tokens are left, there were %v", now, left)
	}
	s.logs.mu.Lock()
	defer s.logs.mu.Unlock()
	if log := s.logs.buf.Bytes(); bytes.Contains(log, []byte(adminOfThisTest)) || !bytes.Contains(log, []byte("counted twice")) || !bytes.Contains(log, []byte(`"actor":"service"`)) {
		t.Error("the log tells the token, or not who corrected what and why, or not who was refused")
	}
}

func TestAdjustmentWithoutSpoolIsRefusedWhileKafkaIsAway(t *testing.T) {
	k := realkafka.Start(t)
	k.CreateTopic(t, usage.Topic, usage.Partitions, nil)
	b := start(t, k.Brokers())
	cfg := b.config()
	cfg.AdminToken = adminOfThisTest
	s := run(t, cfg)
	id, corrects := uuid.New(), uuid.New()
	k.Pause(t)
	for code := 200; code == 200; { // the broker's threads stop soon, not at once
		var v map[string]any
		if code, v = s.adjust(adminOfThisTest, uuid.New(), corrects); code != 200 && code != 503 {
			t.Fatalf("%d %v", code, v)
		}
	}
	k.Resume(t)
	code, v := s.adjust(adminOfThisTest, id, corrects)
	for deadline := time.Now().Add(30 * time.Second); code == 503 && time.Now().Before(deadline); {
		code, v = s.adjust(adminOfThisTest, id, corrects)
	}
	if code != 200 || v["adjustment_id"] != id.String() {
		t.Errorf("%d %v", code, v)
	}
}

func TestNobodyAdjustsWithoutAnAdminToken(t *testing.T) {
	b := start(t, broker(t).Brokers())
	s := run(t, b.config())
	for tok, want := range map[string]int{token: 403, "": 401, "anything": 401} {
		if code, v := s.adjust(tok, uuid.New(), uuid.New()); code != want {
			t.Errorf("%q: %d %v", tok, code, v)
		}
	}
}
