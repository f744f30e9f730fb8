package e2e

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/redis/go-redis/v9"
	"github.com/segmentio/kafka-go"

	"github.com/tollgate-dev/tollgate/pkg/client"
	"github.com/tollgate-dev/tollgate/pkg/pgquota"
	"github.com/tollgate-dev/tollgate/pkg/redisurl"
	"github.com/tollgate-dev/tollgate/pkg/tier"
	"github.com/tollgate-dev/tollgate/pkg/usage"
	"github.com/tollgate-dev/tollgate/services/e2e/internal/system"
)

// A request of some 410 tokens.
const fourHundred = hello + `,"max_tokens":400,"x_sim":{"tokens":400}}`

// Counters follow the key's id, its user and its org, not the secret.
func TestB44RotationAndNewKeysGiveNoFreshQuota(t *testing.T) {
	p, _, q := services(t)
	status := func(secret string) int {
		t.Helper()
		resp, _ := answered(t, p.system.GatewayURL, secret, chatPath, fourHundred)
		return resp.StatusCode
	}
	exhaust := func(most int, secrets ...string) {
		t.Helper()
		for i := range most {
			if s := status(secrets[i%len(secrets)]); s == http.StatusTooManyRequests && i > 0 {
				return
			} else if s != http.StatusOK {
				t.Fatalf("request %d: %d", i, s)
			}
		}
		t.Fatalf("%d requests passed", most)
	}
	user := newUser(t, q, limits{})
	key, err := q.CreateKey(t.Context(), client.NewKey{UserID: user, Overrides: tier.Overrides{TPDLimit: new(int64(1000))}})
	if err != nil {
		t.Fatal(err)
	}
	exhaust(3, key.Secret)
	rotated, err := q.RotateKey(t.Context(), key.ID, client.KeyChange{})
	if err != nil {
		t.Fatal(err)
	}
	if old, now := status(key.Secret), status(rotated.Secret); old != http.StatusUnauthorized || now != http.StatusTooManyRequests {
		t.Errorf("after the rotation: old secret %d, new secret %d", old, now)
	}

	user = newUser(t, q, limits{tpd: 2000})
	var secrets []string
	var last client.Key
	for range 5 {
		if last, err = q.CreateKey(t.Context(), client.NewKey{UserID: user}); err != nil {
			t.Fatal(err)
		}
		secrets = append(secrets, last.Secret)
	}
	exhaust(6, secrets...)
	for i, s := range secrets {
		if got := status(s); got != http.StatusTooManyRequests {
			t.Errorf("key %d of the same user: %d", i, got)
		}
	}
	if _, err := q.RevokeKey(t.Context(), last.ID, client.KeyChange{}); err != nil {
		t.Fatal(err)
	}
	if last, err = q.CreateKey(t.Context(), client.NewKey{UserID: user}); err != nil {
		t.Fatal(err)
	}
	if got := status(last.Secret); got != http.StatusTooManyRequests {
		t.Errorf("a new key of the same user: %d", got)
	}
}

// written may be written to by several services at once.
type written struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (w *written) Write(p []byte) (int, error) { w.mu.Lock(); defer w.mu.Unlock(); return w.b.Write(p) }
func (w *written) String() string              { w.mu.Lock(); defer w.mu.Unlock(); return w.b.String() }

// Secrets are used and misused on the way of a request: none is in a log, a trace, a metric, an event, Redis or the ledger. (TestCanarySecretsAreNowhere of the
// quota service is the same for the way of a change.)
func TestCanarySecretsAreNowhereOnARequestsWay(t *testing.T) {
	var traces written
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body := io.Reader(r.Body)
		if r.Header.Get("Content-Encoding") == "gzip" {
			z, err := gzip.NewReader(r.Body)
			if err != nil {
				t.Error(err)
				return
			}
			body = z
		}
		if _, err := io.Copy(&traces, body); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(collector.Close)
	p, _, q := services(t)
	var log written
	urls, stops := p.pairLogging(t, &log, "TOLLGATE_LOG_LEVEL=debug", "OTEL_EXPORTER_OTLP_ENDPOINT="+collector.URL)
	gateway := urls[1]

	user, key := keyed(t, q, limits{rpm: 4})
	rotated, err := q.RotateKey(t.Context(), key.ID, client.KeyChange{})
	if err != nil {
		t.Fatal(err)
	}
	session, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{"sub": user, "exp": time.Now().Add(time.Hour).Unix()}).SignedString([]byte(system.JWTSecret))
	if err != nil {
		t.Fatal(err)
	}
	canaries := map[string]string{"old key": key.Secret, "new key": rotated.Secret, "key of nobody": "tg-" + strings.Repeat("Q7", 13), "session": session,
		"service token": system.ServiceToken, "admin token": system.AdminToken, "upstream key": system.UpstreamKey, "session secret": system.JWTSecret}
	statuses := map[int]int{}
	for _, secret := range canaries {
		for _, body := range []string{hello + `,"max_tokens":1}`, hello + `,"max_tokens":1,"stream":true}`, `{"model":` + secret, hello + `,"user":"` + secret + `","max_tokens":1}`} {
			resp, _ := answered(t, gateway, secret, chatPath, body)
			statuses[resp.StatusCode]++
		}
		resp := ask(t.Context(), t, gateway, secret, "/"+secret+"?key="+secret, hello, http.Header{"X-Request-Id": {secret}, "Traceparent": {secret}, "X-Api-Key": {secret}})
		statuses[resp.StatusCode]++
		if strings.HasPrefix(secret, "tg-") { // has the form of a secret: no id, wherever it stands
			resp, _ := answered(t, gateway, rotated.Secret, chatPath, `{"model":"`+secret+`","messages":[{"role":"user","content":"x"}],"max_tokens":1}`)
			statuses[resp.StatusCode]++
			for _, r := range []client.CheckRequest{{UserID: secret, Model: "grok-2", EstimatedTokens: new(int64(1))}, {APIKeyID: secret, Model: "grok-2", EstimatedTokens: new(int64(1))}} {
				if _, err := client.NewEnforcement(urls[0], system.ServiceToken).Check(t.Context(), r); err == nil {
					t.Error("a secret passes for an id")
				}
			}
		}
		_, _ = client.NewEnforcement(urls[0], secret).Check(t.Context(), client.CheckRequest{UserID: user, Model: "grok-2", EstimatedTokens: new(int64(1))}) // most are refused
	}
	if statuses[http.StatusOK] == 0 || statuses[http.StatusUnauthorized] == 0 || statuses[http.StatusTooManyRequests] == 0 || statuses[http.StatusBadRequest] == 0 {
		t.Errorf("not every way was gone: %v", statuses)
	}
	resp, _ := answered(t, gateway, keyOf(t, q).Secret, chatPath, hello+`,"max_tokens":1}`)
	p.usageOf(t, requestID(t, resp)) // what came before it is in the ledger too, or will be within moments
	metrics := metricsOf(t, urls[0]) + metricsOf(t, gateway)
	for _, base := range []string{p.system.EnforcementURL, p.system.GatewayURL, p.system.ConsumerURL, p.system.QuotaURL} {
		metrics += metricsOf(t, base)
	}
	for i := range stops { // the gateway first; then logs and traces are written
		if err := stops[len(stops)-1-i](); err != nil {
			t.Fatal(err)
		}
	}
	places := map[string]string{"log": log.String(), "traces": traces.String(), "metrics": metrics, "events": p.wholeTopic(t, usage.Topic), "redis": p.wholeRedis(t), "ledger": p.wholeLedger(t)}
	for place, mark := range map[string]string{"log": "unauthorized", "traces": "/v1/chat/completions", "metrics": "tollgate_", "events": user, "redis": user, "ledger": user} {
		if !strings.Contains(places[place], mark) {
			t.Errorf("%s: %q is not in the %d bytes that were looked at", place, mark, len(places[place]))
		}
	}
	for place, text := range places {
		for name, secret := range canaries {
			visible := 0
			if strings.HasPrefix(secret, "tg-") {
				visible = pgquota.VisibleLen
			}
			for _, form := range []string{secret[visible:], hex.EncodeToString([]byte(secret[visible:]))} {
				if i := strings.Index(text, form); i >= 0 {
					t.Errorf("the %s is in the %s: …%s…", name, place, text[max(0, i-200):min(len(text), i+100)])
				}
			}
		}
	}
}

func keyOf(t *testing.T, q *client.Quotas) client.Key {
	t.Helper()
	_, key := keyed(t, q, limits{})
	return key
}

// wholeTopic is every message that a topic holds now.
func (p *wholePath) wholeTopic(t *testing.T, topic string) string {
	t.Helper()
	var all strings.Builder
	for partition := range usage.Partitions {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		conn, err := kafka.DialLeader(ctx, "tcp", p.stores.KafkaBrokers[0], topic, partition)
		if err != nil {
			t.Fatal(err)
		}
		_, end, err := conn.ReadOffsets()
		_ = conn.Close()
		if err != nil {
			t.Fatal(err)
		}
		r := kafka.NewReader(kafka.ReaderConfig{Brokers: p.stores.KafkaBrokers, Topic: topic, Partition: partition, MaxWait: 100 * time.Millisecond})
		for next := int64(0); next < end; {
			m, err := r.ReadMessage(ctx)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&all, "%s %s %v\n", m.Key, m.Value, m.Headers)
			next = m.Offset + 1
		}
		_ = r.Close()
		cancel()
	}
	return all.String()
}

// wholeRedis is every key of Redis with its value.
func (p *wholePath) wholeRedis(t *testing.T) string {
	t.Helper()
	o, err := redisurl.Options(p.stores.RedisURL)
	if err != nil {
		t.Fatal(err)
	}
	c := redis.NewUniversalClient(o)
	defer c.Close()
	var all strings.Builder
	keys := c.Scan(t.Context(), 0, "*", 1000).Iterator()
	for keys.Next(t.Context()) {
		v, _ := c.Dump(t.Context(), keys.Val()).Result() // one that has just expired has none
		fmt.Fprintf(&all, "%s %q\n", keys.Val(), v)
	}
	if err := keys.Err(); err != nil {
		t.Fatal(err)
	}
	return all.String()
}

// wholeLedger is every event of the ledger.
func (p *wholePath) wholeLedger(t *testing.T) string {
	t.Helper()
	var rows []string
	if err := p.ledger(t).QueryRow(t.Context(), "SELECT groupArray(toString(tuple(*))) FROM usage_events").Scan(&rows); err != nil {
		t.Fatal(err)
	}
	return strings.Join(rows, "\n")
}
