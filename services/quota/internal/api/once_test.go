package api

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"
)

func TestRepeatedPostGetsTheFirstOnesAnswer(t *testing.T) {
	h := newHarness(t)
	path, _ := h.made(`{"org_id":"acme"}`)
	for _, c := range []struct{ target, body, other string }{
		{"/internal/api-keys", `{"user_id":"u1","name":"batch"}`, `{"user_id":"u1","name":"other"}`},
		{path + "/rotate", `{"reason":"leaked"}`, `{"reason":"lost"}`},
		{"/internal/admin-tokens", `{"name":"alice","role":"admin"}`, `{"name":"bob","role":"admin"}`},
	} {
		key := "once-" + c.target
		first := h.post(c.target, c.body, "Idempotency-Key", key)
		if first.status/100 != 2 || first.header.Get("Idempotency-Replayed") != "" {
			t.Fatalf("%s: %d %s", c.target, first.status, first.body)
		}
		before := h.everything()
		for range 3 {
			again := h.post(c.target, c.body, "Idempotency-Key", key)
			if again.status != first.status || !bytes.Equal(again.body, first.body) || again.header.Get("ETag") != first.header.Get("ETag") ||
				again.header.Get("Location") != first.header.Get("Location") || again.header.Get("Idempotency-Replayed") != "true" {
				t.Errorf("%s: %d %v\n%s\n%s", c.target, again.status, again.header, again.body, first.body)
			}
		}
		for name, a := range map[string]answer{"other body": h.post(c.target, c.other, "Idempotency-Key", key), "other If-Match": h.post(c.target, c.body, "Idempotency-Key", key, "If-Match", `"1"`)} {
			if a.status != 422 || a.problem(t).Code != "idempotency_key_reused" {
				t.Errorf("%s, %s: %d %s", c.target, name, a.status, a.body)
			}
		}
		if after := h.everything(); after != before {
			t.Errorf("%s: a repeat changed something", c.target)
		}
	}
	// Its secret is kept, but nobody can read it there.
	secret, _ := h.post("/internal/api-keys", `{"user_id":"u1","name":"batch"}`, "Idempotency-Key", "once-/internal/api-keys").json(t)["secret"].(string)
	var kept []byte
	if err := h.db.QueryRow("SELECT string_agg(answer, '') FROM idempotent_answers").Scan(&kept); err != nil || len(kept) == 0 {
		t.Fatal(len(kept), err)
	}
	if !strings.HasPrefix(secret, "tg-") || bytes.Contains(kept, []byte(secret[3:])) || bytes.Contains(kept, []byte("batch")) {
		t.Error("an answer is kept in clear")
	}
	// The key belongs to a caller: another one's is another call.
	alice := h.token(`{"name":"alice2","role":"admin"}`)
	if a := h.call("POST", "/internal/api-keys", alice, `{"user_id":"u1","name":"batch"}`, "Idempotency-Key", "once-/internal/api-keys"); a.status != 201 || a.json(t)["secret"] == secret {
		t.Errorf("%d %s", a.status, a.body)
	}
	// A day later it is forgotten.
	if _, err := h.db.Exec("UPDATE idempotent_answers SET created_at = created_at - interval '25 hours'"); err != nil {
		t.Fatal(err)
	}
	if a := h.post("/internal/api-keys", `{"user_id":"u1","name":"new"}`, "Idempotency-Key", "once-/internal/api-keys"); a.status != 201 || a.header.Get("Idempotency-Replayed") != "" {
		t.Errorf("%d %s", a.status, a.body)
	}
	if n, err := h.store.PruneAnswers(t.Context()); err != nil || n != 3 {
		t.Errorf("%d forgotten, %v", n, err)
	}
}

func TestConcurrentRepeatsMakeOneKey(t *testing.T) {
	h := newHarness(t)
	for round := range 10 {
		before := h.count("api_keys")
		var wg sync.WaitGroup
		bodies := make([]string, 8)
		for i := range bodies {
			wg.Go(func() {
				a := h.post("/internal/api-keys", `{"user_id":"u1"}`, "Idempotency-Key", fmt.Sprint("round ", round))
				bodies[i] = fmt.Sprint(a.status, string(a.body))
			})
		}
		wg.Wait()
		for _, b := range bodies {
			if b != bodies[0] || !strings.HasPrefix(b, "201") {
				t.Errorf("answers differ:\n%s\n%s", b, bodies[0])
			}
		}
		if n := h.count("api_keys") - before; n != 1 {
			t.Errorf("%d keys were made", n)
		}
	}
}

// What failed is not kept: the same call may be made again, and then is.
func TestFailedPostIsNotKept(t *testing.T) {
	h := newHarness(t)
	path, _ := h.made(`{"org_id":"acme"}`)
	if a := h.post(path+"/rotate", "-", "Idempotency-Key", "k", "If-Match", `"9"`); a.status != 412 {
		t.Fatal(a.status)
	}
	if n := h.count("idempotent_answers"); n != 0 {
		t.Errorf("%d answers", n)
	}
	for _, key := range []string{"", strings.Repeat("x", 256), "a\tb", "é"} {
		if a := h.post(path+"/rotate", "-", "Idempotency-Key", key); a.status != 400 || a.fields(t)[0] != "Idempotency-Key" {
			t.Errorf("%q: %d %s", key, a.status, a.body)
		}
	}
	h.redis.err = fmt.Errorf("away")
	first := h.post(path+"/rotate", "-", "Idempotency-Key", "k2")
	h.redis.err = nil
	again := h.post(path+"/rotate", "-", "Idempotency-Key", "k2")
	if first.json(t)["propagation"] != "pending" || again.json(t)["propagation"] != "done" || again.json(t)["secret"] != first.json(t)["secret"] {
		t.Errorf("%s\n%s", first.body, again.body)
	}
}
