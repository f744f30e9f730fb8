package app

import (
	"bytes"
	"compress/gzip"
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
	"github.com/segmentio/kafka-go"

	embedded "github.com/tollgate-dev/tollgate/pkg/embedded/kafka"
	"github.com/tollgate-dev/tollgate/pkg/pgquota"
	"github.com/tollgate-dev/tollgate/pkg/testkit/crash"
	"github.com/tollgate-dev/tollgate/pkg/testkit/realredis"
	"github.com/tollgate-dev/tollgate/pkg/testkit/stores"
)

var (
	puts   = flag.Int("puts", 400, "how many concurrent PUTs are made; 2000 is the nightly size")
	outage = flag.Duration("outage", 3*time.Second, "how long Kafka is away; 2m is the nightly size")
)

// Eight clients add to what they have read, guarded by If-Match, at two replicas. No addition is lost, and events, projection and the topic's last
// values are one.
func TestConcurrentPutsLoseNoUpdateAndTheFoldIsTheProjectionIsTheTopic(t *testing.T) {
	const users, clients = 50, 8
	url, redisServer, broker := stores.Postgres(t), stores.Redis(t), stores.Kafka(t)
	replicas := []*service{start(t, url, redisServer.URL(), broker.Addr), start(t, url, redisServer.URL(), broker.Addr)}
	var left, races atomic.Int64
	left.Store(int64(*puts))
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clients}}
	defer client.CloseIdleConnections()
	call := func(s *service, method, path, etag, body string) (int, map[string]any) {
		r, err := http.NewRequestWithContext(t.Context(), method, s.url+path, strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return 0, nil
		}
		r.Header.Set("Authorization", "Bearer "+adminToken)
		if etag != "" {
			r.Header.Set("If-Match", etag)
		}
		resp, err := client.Do(r)
		if err != nil {
			t.Error(err)
			return 0, nil
		}
		defer resp.Body.Close()
		var m map[string]any
		if err := json.NewDecoder(resp.Body).Decode(&m); err != nil {
			t.Error(err)
		}
		return resp.StatusCode, m
	}
	began := time.Now()
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() {
			for i := 0; left.Add(-1) >= 0 && !t.Failed(); i++ {
				path := fmt.Sprintf("/internal/quota/u%02d", (i+c/4)%users) // four clients at a time are about one user
				for !t.Failed() {
					s := replicas[(i+c)%2]
					_, now := call(s, http.MethodGet, path, "", "")
					own, _ := now["overrides"].(map[string]any)
					n, _ := own["rpm_limit"].(float64)
					version, _ := now["version"].(float64)
					status, m := call(s, http.MethodPut, path, fmt.Sprintf("%q", fmt.Sprint(int64(version))), fmt.Sprintf(`{"rpm_limit":%d}`, int64(n)+1))
					if status == http.StatusPreconditionFailed {
						races.Add(1)
						continue
					}
					if status != http.StatusOK || m["propagation"] != "done" {
						t.Errorf("PUT %s: %d %v", path, status, m)
					}
					break
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d PUTs in %v; %d lost races were told", *puts, time.Since(began).Round(time.Millisecond), races.Load())

	store, err := pgquota.Open(t.Context(), url, pgquota.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	entries, err := store.Entries(t.Context(), pgquota.Filter{Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	var additions, versions int64
	want := map[string]int64{}
	for _, e := range entries {
		additions, versions = additions+e.RPMLimit, versions+e.Version
		want[e.Subject.String()] = e.Version
	}
	if additions != int64(*puts) || versions != int64(*puts) {
		t.Errorf("%d PUTs made %d additions and %d versions", *puts, additions, versions)
	}
	report, err := pgquota.RebuildQuotas(t.Context(), store, pgquota.RebuildOptions{})
	if err != nil || len(report.Differences) != 0 || report.Events != int64(*puts)+4 {
		t.Errorf("the fold is not the projection: %+v, %v", report, err)
	}
	last := map[string]pgquota.QuotaChanged{}
	events(t, broker.Addr, func(m kafka.Message) bool {
		var ev pgquota.QuotaChanged
		if err := json.Unmarshal(m.Value, &ev); err != nil {
			t.Error(err)
		}
		last[string(m.Key)] = ev // the last value of a key, as compaction keeps it
		for name, v := range want {
			if last[name].Version != v {
				return false
			}
		}
		return true
	})
	for _, e := range entries {
		stored, err := json.Marshal(e.View())
		if err != nil {
			t.Fatal(err)
		}
		told, err := json.Marshal(last[e.Subject.String()].After)
		if err != nil || string(told) != string(stored) {
			t.Errorf("%s: the topic's last value is %s, the projection %s, %v", e.Subject, told, stored, err)
		}
	}
}

// A real process is killed after its commit and before Redis knows, again and again. It is made up for within five seconds of the restart.
func TestKillBetweenCommitAndPublicationIsMadeUpForWithinFiveSeconds(t *testing.T) {
	const env = "TOLLGATE_TEST_QUOTA_STORES"
	var server *realredis.Server
	if os.Getenv(env) == "" { // not the victim
		server = realredis.Start(t)
		t.Setenv(env, strings.Join([]string{stores.Postgres(t), "redis://" + server.Addr, stores.Kafka(t).Addr}, " "))
	}
	at := strings.Fields(os.Getenv(env))
	for round := range 3 {
		victim, base := crash.Start(t, func() string { return start(t, at[0], at[1], at[2]).url })
		db, err := sql.Open("pgx", at[0])
		if err != nil {
			t.Fatal(err)
		}
		c := redis.NewClient(&redis.Options{Addr: server.Addr})
		user := fmt.Sprintf("u%d", round)
		server.Pause() // the PUT commits, and then waits for Redis
		answered := make(chan bool, 1)
		go func() {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, base+"/internal/quota/"+user, strings.NewReader(`{"tier":"plus"}`))
			if err != nil {
				answered <- true
				return
			}
			r.Header.Set("Authorization", "Bearer "+adminToken)
			resp, err := http.DefaultClient.Do(r)
			if err == nil {
				_ = resp.Body.Close()
			}
			answered <- err == nil
		}()
		count := func(where string) (n int) {
			if err := db.QueryRow("SELECT count(*) FROM outbox WHERE name = $1 AND "+where, "user:"+user).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		await(t, 10*time.Second, "committed", func() bool { return count("true") == 1 })
		victim.Kill()
		if <-answered {
			t.Fatal("the PUT was answered before the kill: this proves nothing")
		}
		server.Resume()
		if fence(t, c, "", user) != "" || count("redis_published_at IS NULL") != 1 {
			t.Fatal("it was published before the kill: this proves nothing")
		}
		restarted := time.Now()
		s := start(t, at[0], at[1], at[2])
		await(t, 5*time.Second-time.Since(restarted), "published to Redis within 5 s of the restart", func() bool { return fence(t, c, "", user) == "1" })
		await(t, 5*time.Second-time.Since(restarted), "published to Kafka within 5 s of the restart", func() bool { return count("kafka_published_at IS NOT NULL") == 1 })
		t.Logf("published %v after the restart", time.Since(restarted).Round(time.Millisecond))
		events(t, at[2], func(m kafka.Message) bool { return string(m.Key) == "user:"+user })
		s.stop()
		_, _ = c.Close(), db.Close()
	}
}

// Kafka is away for minutes: changes are answered meanwhile, and every one arrives, in order, when it is back.
func TestOutageOfKafkaLosesAndReordersNothing(t *testing.T) {
	url, redisServer, dir := stores.Postgres(t), stores.Redis(t), t.TempDir()
	open := func(port int) *embedded.Server {
		s, err := embedded.Start(context.Background(), embedded.Options{Dir: dir, Port: port, NoSync: true})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	broker := open(0)
	port, err := strconv.Atoi(broker.Addr[strings.LastIndex(broker.Addr, ":")+1:])
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, url, redisServer.URL(), broker.Addr)
	s.put("u0", `{"rpm_limit":1}`)
	if err := broker.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	n := int64(1)
	for began := time.Now(); time.Since(began) < *outage; n++ {
		if v, propagation := s.put("u0", fmt.Sprintf(`{"rpm_limit":%d}`, n+1)); v != n+1 || propagation != "done" {
			t.Fatalf("version %d, %s", v, propagation)
		}
		time.Sleep(50 * time.Millisecond)
	}
	broker = open(port)
	defer broker.Close(context.Background())
	back := time.Now()
	next := int64(1)
	events(t, broker.Addr, func(m kafka.Message) bool {
		var ev pgquota.QuotaChanged
		if err := json.Unmarshal(m.Value, &ev); err != nil {
			t.Error(err)
		}
		if ev.Version > next {
			t.Errorf("version %d before %d", ev.Version, next)
		}
		if ev.Version == next {
			next++
		}
		return next > n
	})
	t.Logf("%d changes during %v; all there %v after it", n, *outage, time.Since(back).Round(time.Millisecond))
}

// Secrets are made, used, misused and leaked on purpose. None is in a log, a trace, a metric, an event, Redis or Postgres.
func TestCanarySecretsAreNowhere(t *testing.T) {
	var mu sync.Mutex
	var traces bytes.Buffer
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
		mu.Lock()
		defer mu.Unlock()
		if _, err := io.Copy(&traces, body); err != nil {
			t.Error(err)
		}
	}))
	defer collector.Close()
	url, server, broker := stores.Postgres(t), realredis.Start(t), stores.Kafka(t)
	s := startWith(t, url, "redis://"+server.Addr, broker.Addr, func(c *Config) { c.OTLPEndpoint = collector.URL })
	made := func(path, body, field string, headers ...string) string {
		t.Helper()
		status, m := s.callAs(adminToken, http.MethodPost, path, body, headers...)
		secret, _ := m[field].(string)
		if status/100 != 2 || len(secret) < 20 {
			t.Fatal(status, m)
		}
		return secret
	}
	once := "once-canary-of-this-test"
	keyBody := `{"user_id":"u1","name":"batch"}`
	canaries := map[string]string{"environment token": adminToken, "idempotency key": once}
	canaries["key"] = made("/internal/api-keys", keyBody, "secret", "Idempotency-Key", once)
	if again := made("/internal/api-keys", keyBody, "secret", "Idempotency-Key", once); again != canaries["key"] {
		t.Error("a repeat got another secret")
	}
	k := s.keys()[0]
	canaries["rotated key"] = made("/internal/api-keys/"+k+"/rotate", "", "secret", "Idempotency-Key", once)
	canaries["admin token"] = made("/internal/admin-tokens", `{"name":"alice","role":"admin"}`, "token", "Idempotency-Key", once)
	for name, secret := range canaries {
		for _, c := range [][3]string{{"GET", "/internal/quota/" + secret, ""}, {"PUT", "/internal/quota/" + secret, `{}`}, {"GET", "/internal/api-keys/" + secret + "?cursor=" + secret, ""},
			{"GET", "/internal/quotas?" + secret + "=" + secret, ""}, {"PUT", "/internal/quota/u1", `{"` + secret + `":1}`}, {"PUT", "/internal/quota/u1", `{"tier":"` + secret + `"}`},
			{"POST", "/internal/api-keys", `{"user_id":"` + secret + `"}`}, {"DELETE", "/internal/admin-tokens/" + secret, ""}, {"GET", "/" + secret, ""}} {
			if strings.Contains(name, "idempotency") || strings.Contains(name, "environment") {
				continue // by their form these are ids as good as any: whoever puts one where an id belongs has told it
			}
			s.callAs(adminToken, c[0], c[1], c[2])
			s.callAs("", c[0], c[1], c[2])
		}
		s.callAs(secret, http.MethodGet, "/internal/tiers", "")
		s.callAs(secret, http.MethodPut, "/internal/quota/u1", `{"tier":"plus"}`, "Idempotency-Key", secret)
	}
	s.put("u1", `{"tier":"plus","org_id":"acme"}`)
	events(t, broker.Addr, func(m kafka.Message) bool {
		return string(m.Key) == "user:u1" && bytes.Contains(m.Value, []byte(`"acme"`))
	})
	resp, err := http.Get(s.url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	metrics, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil {
		t.Fatal(err)
	}
	s.stop() // traces and the audit log are written by now
	places := map[string]string{"log": s.log.String(), "traces": traces.String(), "metrics": string(metrics), "events": topic(t, broker.Addr), "redis": dump(t, server.Addr), "postgres": tables(t, url)}
	for place, text := range places {
		if len(text) < 100 {
			t.Errorf("%s: only %q was looked at", place, text)
		}
		for name, secret := range canaries {
			visible := 0
			if strings.Contains(name, "key") && strings.HasPrefix(secret, "tg-") {
				visible = pgquota.VisibleLen
			}
			for form, s := range map[string]string{"": secret[visible:], "in hex": hex.EncodeToString([]byte(secret[visible:]))} {
				if i := strings.Index(text, s); i >= 0 {
					t.Errorf("the %s is %s in the %s: …%s…", name, form, place, text[max(0, i-200):min(len(text), i+100)])
				}
			}
		}
	}
}

// topic is every message, whole.
func topic(t *testing.T, broker string) string {
	t.Helper()
	var all strings.Builder
	n := 0
	events(t, broker, func(m kafka.Message) bool {
		fmt.Fprintf(&all, "%s %s %v\n", m.Key, m.Value, m.Headers)
		n++
		return string(m.Key) == "user:u1" && bytes.Contains(m.Value, []byte(`"acme"`)) // the last change of the test
	})
	return all.String()
}

// dump is every key of Redis with its value.
func dump(t *testing.T, addr string) string {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: addr})
	defer c.Close()
	keys, err := c.Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, k := range keys {
		v, err := c.Dump(t.Context(), k).Result()
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&all, "%s %q\n", k, v)
	}
	return all.String()
}

// tables is every row of every table.
func tables(t *testing.T, url string) string {
	t.Helper()
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var names, all string
	if err := db.QueryRow("SELECT string_agg(table_name, ' ') FROM information_schema.tables WHERE table_schema = 'public'").Scan(&names); err != nil {
		t.Fatal(err)
	}
	for _, name := range strings.Fields(names) {
		var rows string
		if err := db.QueryRow("SELECT COALESCE(string_agg(x::text, E'\n'), '') FROM " + name + " AS x").Scan(&rows); err != nil {
			t.Fatal(err)
		}
		all += name + "\n" + rows + "\n"
	}
	return all
}
