package e2e

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	clickhousego "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/tollgate-dev/tollgate/pkg/client"
	"github.com/tollgate-dev/tollgate/services/e2e/internal/system"
)

// B43: nothing but the credential says who pays.
func TestB43OnlyTheCredentialSaysWhoPays(t *testing.T) {
	p, e, q := services(t)
	user, key := keyed(t, q, limits{rpm: 100})
	other := newUser(t, q, limits{rpm: 100})
	var last uuid.UUID
	for i := range 20 {
		named := other
		if i >= 10 {
			named = uuid.NewString()
		}
		h := http.Header{"X-User-Id": {named}, "X-Org-Id": {"o2"}, "X-Api-Key": {"tg-other"}, "Openai-Organization": {"o2"}, "Cookie": {"session=1"}, "X-Request-Id": {uuid.NewString()}}
		resp := ask(t.Context(), t, p.system.GatewayURL, key.Secret, chatPath, fmt.Sprintf(`%s,"max_tokens":1,"user":%q,"metadata":{"user_id":%q}}`, hello, named, named), h)
		if resp.StatusCode != http.StatusOK {
			t.Fatal(resp.Status)
		}
		_ = resp.Body.Close()
		if last = requestID(t, resp); last.String() == h.Get("X-Request-Id") {
			t.Error("a client's request id became a bill's")
		}
	}
	awaitFree(t, e, user)
	if u := p.usageOf(t, last); u.User != user || u.Key != key.ID || u.Org != "" {
		t.Errorf("%+v", u)
	}
	if left := remaining(t, status(t, e, user), "requests"); left > 100-20+15 {
		t.Errorf("%d requests are left of 100 after 20", left)
	}
	if left := remaining(t, status(t, e, other), "requests"); left != 100 {
		t.Errorf("%d requests are left of the other's 100", left)
	}
	sent := p.upstream.Answers()[last.String()].Header
	for _, name := range []string{"X-User-Id", "X-Org-Id", "X-Api-Key", "Openai-Organization", "Cookie"} {
		if sent.Get(name) != "" {
			t.Errorf("the server got %s", name)
		}
	}
	if sent.Get("Authorization") != "Bearer "+system.UpstreamKey {
		t.Error("the server did not get its own credential")
	}
}

// B43, of a session: nor do a request's own fields.
func TestB43OnlyTheSessionSaysWhoPays(t *testing.T) {
	p, e, q := services(t)
	user, other := newUser(t, q, limits{rpm: 100}), newUser(t, q, limits{rpm: 100})
	h := http.Header{"X-User-Id": {other}, "X-Forwarded-User": {other}, "X-Org-Id": {"o2"}, "X-Api-Key": {"tg-other"}, "Openai-Organization": {"o2"}, "Cookie": {"session=1; user_id=" + other}}
	resp := ask(t.Context(), t, p.system.GatewayURL, session(t, user), chatPath, fmt.Sprintf(`%s,"max_tokens":1,"user":%q,"user_id":%q,"metadata":{"user_id":%q}}`, hello, other, other, other), h)
	if resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status)
	}
	if u := p.usageOf(t, requestID(t, resp)); u.User != user || u.Key != "" || u.Org != "" {
		t.Errorf("%+v", u)
	}
	if left := remaining(t, status(t, e, other), "requests"); left != 100 {
		t.Errorf("%d requests are left of the other's 100", left)
	}
}

// B64: a key that is revoked while no announcement arrives is refused all the same.
func TestB64AKeyThatIsRevokedUnheardIsRefused(t *testing.T) {
	p, _, q := services(t)
	o, err := redis.ParseURL(p.stores.RedisURL)
	if err != nil {
		t.Fatal(err)
	}
	rdb := redis.NewClient(o)
	defer func() { _ = rdb.Close() }()
	for range 5 {
		_, key := keyed(t, q, limits{})
		if resp, body := answered(t, p.system.GatewayURL, key.Secret, chatPath, hello+`,"max_tokens":1}`); resp.StatusCode != http.StatusOK {
			t.Fatal(resp.Status, body)
		}
		done := make(chan struct{})
		var killer sync.WaitGroup
		killer.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					_ = rdb.ClientKillByFilter(context.WithoutCancel(t.Context()), "TYPE", "pubsub").Err() // none is left at times
				}
			}
		})
		_, err := q.RevokeKey(t.Context(), key.ID, client.KeyChange{})
		close(done)
		killer.Wait()
		if err != nil {
			t.Fatal(err)
		}
		if resp, body := answered(t, p.system.GatewayURL, key.Secret, chatPath, hello+`,"max_tokens":1}`); resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("a revoked key is served: %s %s", resp.Status, body)
		}
	}
}

func TestARevokedOrRotatedKeyIsRefusedOnTheNextRequest(t *testing.T) {
	p, _, q := services(t)
	for range 10 {
		_, key := keyed(t, q, limits{})
		status := func(secret string) int {
			resp, _ := answered(t, p.system.GatewayURL, secret, chatPath, hello+`,"max_tokens":1}`)
			return resp.StatusCode
		}
		if s := status(key.Secret); s != http.StatusOK {
			t.Fatal(s)
		}
		rotated, err := q.RotateKey(t.Context(), key.ID, client.KeyChange{})
		if err != nil {
			t.Fatal(err)
		}
		if s, n := status(key.Secret), status(rotated.Secret); s != http.StatusUnauthorized || n != http.StatusOK {
			t.Errorf("after the rotation: old %d, new %d", s, n)
		}
		if _, err := q.RevokeKey(t.Context(), key.ID, client.KeyChange{}); err != nil {
			t.Fatal(err)
		}
		if s := status(rotated.Secret); s != http.StatusUnauthorized {
			t.Errorf("after the revocation: %d", s)
		}
	}
}

// session is a session's token.
func session(t *testing.T, user string) string {
	t.Helper()
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{"sub": user, "exp": time.Now().Add(time.Hour).Unix()}).SignedString([]byte(system.JWTSecret))
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestASessionIsBilledToItsUser(t *testing.T) {
	p, _, q := services(t)
	user := newUser(t, q, limits{})
	resp, body := answered(t, p.system.GatewayURL, session(t, user), chatPath, hello+`,"max_tokens":2}`)
	if resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status, body)
	}
	if u := p.usageOf(t, requestID(t, resp)); u.User != user || u.Key != "" || u.Output != 2 {
		t.Errorf("%+v", u)
	}
}

var requestsOfB130 = flag.Int("gateway.series", 300, "how many models, paths and unknown keys the test of case B130 sends, and a tenth as many keys; the case has 10000")

// B130: what clients send becomes no series.
func TestB130NothingThatClientsSendBecomesASeries(t *testing.T) {
	p, _, q := services(t)
	_, key := keyed(t, q, limits{})
	_, _ = answered(t, p.system.GatewayURL, key.Secret, chatPath, hello+`,"max_tokens":1}`)
	before := metricsOf(t, p.system.GatewayURL)
	secrets := []string{key.Secret}
	marker := "m" + strings.ReplaceAll(uuid.NewString(), "-", "")
	for i := range *requestsOfB130 {
		if i%10 == 0 {
			_, key = keyed(t, q, limits{})
			secrets = append(secrets, key.Secret)
		}
		model := fmt.Sprintf("%s-%d", marker, i)
		_, _ = answered(t, p.system.GatewayURL, key.Secret, chatPath, fmt.Sprintf(`{"model":%q,"user":%q,"max_tokens":1,"messages":[]}`, model, model))
		resp := ask(t.Context(), t, p.system.GatewayURL, "tg-"+model, "/"+model, "{}", nil)
		_ = resp.Body.Close()
		resp = ask(t.Context(), t, p.system.GatewayURL, "tg-"+model, chatPath, "{}", nil)
		_ = resp.Body.Close()
	}
	after := metricsOf(t, p.system.GatewayURL)
	if grown := strings.Count(after, "\n") - strings.Count(before, "\n"); grown >= 100 {
		t.Errorf("%d more series", grown)
	}
	for _, sent := range append(secrets, marker) {
		if strings.Contains(after, sent) {
			t.Fatal("what a client sent is in the metrics")
		}
	}
}

// B130: what is asked and answered, and the credential, are in no log, trace, metric or event, however the request ends.
func TestB130NoPromptOrSecretIsWrittenAnywhere(t *testing.T) {
	p, e, q := services(t)
	var logs, traces written
	sink := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(&traces, r.Body) }))
	t.Cleanup(sink.Close) // the services stop before it
	urls, stops := p.pairLogging(t, &logs, "OTEL_EXPORTER_OTLP_ENDPOINT="+sink.URL, "TOLLGATE_LOG_LEVEL=DEBUG")
	base := urls[1]
	user, key := keyed(t, q, limits{})
	canary := "canary" + strings.ReplaceAll(uuid.NewString(), "-", "")
	asks := fmt.Sprintf(`{"model":"grok-2","user":%q,"metadata":{"user_id":%q},"messages":[{"role":"user","content":%q}],"tools":[{"type":"function","function":{"name":%q}}]`, canary, canary, canary, canary)
	var ids []string
	for _, body := range []string{`,"max_tokens":2}`, `,"stream":true,"max_tokens":2}`, `,"x_sim":{"echo":true}}`, `,"x_sim":{"status":500}}`, `,"stream":true,"x_sim":{"malformed":true,"tokens":3}}`,
		`,"stream":true,"x_sim":{"cut_after":2}}`, `,"max_tokens":"` + canary + `"}`, `,"max_tokens":999999999999}`, `,"` + canary + `"`} {
		resp := ask(t.Context(), t, base, key.Secret, chatPath, asks+body, http.Header{"User-Agent": {canary}, "Cookie": {canary}, "X-Request-Id": {canary}})
		_, _ = io.Copy(io.Discard, resp.Body) // one is cut
		ids = append(ids, resp.Header.Get("X-Request-Id"))
	}
	awaitFree(t, e, user)
	metrics := metricsOf(t, base)
	rows, n := "", 0
	for _, id := range ids[:3] {
		p.usageOf(t, uuid.MustParse(id))
	}
	found, err := p.ledger(t).Query(t.Context(), "SELECT toString(tuple(*)) FROM usage_events WHERE user_id = @user", clickhousego.Named("user", user))
	if err != nil {
		t.Fatal(err)
	}
	for found.Next() {
		var row string
		if err := found.Scan(&row); err != nil {
			t.Fatal(err)
		}
		rows, n = rows+row+"\n", n+1
	}
	if err := stops[1](); err != nil { // it sends its last spans
		t.Fatal(err)
	}
	if spans := traces.String(); n < 3 || !strings.Contains(logs.String(), "gateway") || !strings.Contains(spans, "tollgate") && !strings.Contains(spans, "gateway") {
		t.Fatalf("%d events, %d bytes of logs and %d of traces: too little to look at", n, len(logs.String()), len(spans))
	}
	for where, text := range map[string]string{"a log": logs.String(), "a trace": traces.String(), "a metric": metrics, "an event": rows} {
		for what, sent := range map[string]string{"the prompt": canary, "the key": key.Secret} {
			if at := strings.Index(text, sent); at >= 0 {
				t.Errorf("%s is in %s: %.400q", what, where, text[max(0, at-200):])
			}
		}
	}
}
