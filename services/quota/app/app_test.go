package app

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/segmentio/kafka-go"

	embedded "github.com/tollgate-dev/tollgate/pkg/embedded/kafka"
	"github.com/tollgate-dev/tollgate/pkg/pgquota"
	"github.com/tollgate-dev/tollgate/pkg/redisfence"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/testkit/realkafka"
	"github.com/tollgate-dev/tollgate/pkg/testkit/realredis"
	"github.com/tollgate-dev/tollgate/pkg/testkit/stores"
	"github.com/tollgate-dev/tollgate/pkg/usage"
	"github.com/tollgate-dev/tollgate/schemas"
)

// fence reads the version of a subject that Redis knows; "" if none.
func fence(t *testing.T, c *redis.Client, org, user string) string {
	t.Helper()
	s := subject.Subject{Kind: subject.User, ID: user}
	v, _ := c.Get(t.Context(), redisfence.Key(subject.Shard(org, s), s.String())).Result() // an error reads as "none yet"
	return v
}

func TestPutAnswersAfterPublication(t *testing.T) {
	server := realredis.Start(t)
	c := redis.NewClient(&redis.Options{Addr: server.Addr})
	defer c.Close()
	s := start(t, stores.Postgres(t), "redis://"+server.Addr, stores.Kafka(t).Addr)
	for i := range 50 {
		org := fmt.Sprintf("o%d", i%3)
		version, propagation := s.put("u1", fmt.Sprintf(`{"org_id":%q,"rpm_limit":%d}`, org, i))
		if got := fence(t, c, org, "u1"); propagation != "done" || got != strconv.FormatInt(version, 10) {
			t.Fatalf("PUT %d answered %s at version %d, Redis knows %q", i, propagation, version, got)
		}
		if i == 0 {
			if got := fence(t, c, "", "u1"); got != "1" {
				t.Errorf("where the user was before it joined an org: %q", got)
			}
		}
	}
	if status, m := s.call(http.MethodPut, "/internal/tiers/plus", `{"rpm_limit":1,"tpm_limit":2,"tpd_limit":3,"concurrent_limit":4,"priority":5,
		"allowed_models":[],"max_context":6,"redis_away":"local"}`); status != 200 || m["propagation"] != "done" {
		t.Fatal(status, m)
	}
	for shard := range subject.Shards {
		if got := c.Get(t.Context(), redisfence.Key(shard, "tier:plus")).Val(); got != "2" {
			t.Fatalf("tier in shard %d: %q", shard, got)
		}
	}
}

func TestRedisAwayKeepsTheChangeAndPublishesLater(t *testing.T) {
	server := realredis.Start(t)
	c := redis.NewClient(&redis.Options{Addr: server.Addr})
	defer c.Close()
	s := start(t, stores.Postgres(t), "redis://"+server.Addr, stores.Kafka(t).Addr)
	for name, outage := range map[string]struct{ begin, end func() }{"gone": {server.Stop, server.Restart}, "black-holed": {server.Pause, server.Resume}} {
		outage.begin()
		began := time.Now()
		version, propagation := s.put("u1", `{"org_id":"`+name+`"}`)
		took := time.Since(began)
		_, m := s.call(http.MethodGet, "/internal/quota/u1", "")
		outage.end()
		if propagation != "pending" || m["org_id"] != name {
			t.Errorf("%s: propagation %s, quota %v", name, propagation, m)
		}
		if took > 4*time.Second {
			t.Errorf("%s: the PUT took %v", name, took)
		}
		await(t, 5*time.Second, name+": published after the outage", func() bool { return fence(t, c, name, "u1") == strconv.FormatInt(version, 10) })
	}
}

func TestCrashBetweenCommitAndPublicationIsMadeUpFor(t *testing.T) {
	url, server, broker := stores.Postgres(t), realredis.Start(t), stores.Kafka(t)
	c := redis.NewClient(&redis.Options{Addr: server.Addr})
	defer c.Close()
	start(t, url, "redis://"+server.Addr, broker.Addr).stop()
	store, err := pgquota.Open(t.Context(), url, pgquota.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	// All that a service killed right after its commit leaves behind.
	if _, err := store.PutQuota(t.Context(), pgquota.Change{Subject: subject.Subject{Kind: subject.User, ID: "u1"}, Actor: "admin"}); err != nil {
		t.Fatal(err)
	}
	start(t, url, "redis://"+server.Addr, broker.Addr)
	await(t, 5*time.Second, "in Redis", func() bool { return fence(t, c, "", "u1") == "1" })
	events(t, broker.Addr, func(m kafka.Message) bool { return string(m.Key) == "user:u1" })
}

func TestRelayPublishesInOrderAtLeastOnceAcrossRestart(t *testing.T) {
	url, server := stores.Postgres(t), realredis.Start(t)
	dir := t.TempDir()
	open := func(port int) *embedded.Server {
		s, err := embedded.Start(context.Background(), embedded.Options{Dir: dir, Port: port, NoSync: true})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	broker := open(0)
	port, _ := strconv.Atoi(broker.Addr[strings.LastIndex(broker.Addr, ":")+1:])

	const users, rounds = 6, 8
	n := 0
	change := func(s *service) {
		for range rounds {
			var wg sync.WaitGroup
			for u := range users {
				n++
				body := fmt.Sprintf(`{"rpm_limit":%d,"org_id":"o%d","reason":"change %d"}`, n, n%3, n)
				wg.Go(func() { s.put(fmt.Sprintf("u%d", u), body) })
			}
			wg.Wait()
		}
	}
	s1 := start(t, url, "redis://"+server.Addr, broker.Addr)
	change(s1)
	if err := broker.Close(t.Context()); err != nil { // Kafka goes away in the middle
		t.Fatal(err)
	}
	change(s1)
	s1.stop() // and so does the service, with events that Kafka never had
	broker = open(port)
	defer broker.Close(context.Background())
	s2 := start(t, url, "redis://"+server.Addr, broker.Addr)
	s3 := start(t, url, "redis://"+server.Addr, broker.Addr) // two replicas from here on
	change(s2)
	change(s3)

	schema := eventSchema(t, "quota-changed.v1")
	seen := map[string][]int64{}
	last := map[string]pgquota.QuotaChanged{}
	events(t, broker.Addr, func(m kafka.Message) bool {
		value, err := jsonschema.UnmarshalJSON(bytes.NewReader(m.Value))
		if err == nil {
			err = schema.Validate(value)
		}
		if err != nil {
			t.Errorf("%s breaks the schema: %v", m.Value, err)
		}
		var ev pgquota.QuotaChanged
		if err := json.Unmarshal(m.Value, &ev); err != nil {
			t.Fatal(err)
		}
		headers := map[string]string{}
		for _, h := range m.Headers {
			headers[h.Key] = string(h.Value)
		}
		if headers["ce_id"] != ev.EventID.String() || headers["ce_type"] != "dev.tollgate.quota.changed.v1" || headers["ce_subject"] != ev.Subject ||
			headers["ce_time"] != ev.ChangedAt.String() || string(m.Key) != ev.Subject || ev.EventID != pgquota.EventID(ev.Subject, ev.Version) {
			t.Errorf("headers %v of %s", headers, m.Value)
		}
		seen[ev.Subject] = append(seen[ev.Subject], ev.Version)
		last[ev.Subject] = ev
		complete := 0
		for _, ev := range last {
			if ev.Version == 4*rounds {
				complete++
			}
		}
		return complete == users
	})
	for subject, versions := range seen {
		var first []int64
		for _, v := range versions {
			if !slices.Contains(first, v) {
				first = append(first, v)
			}
		}
		if len(first) != 4*rounds || !slices.IsSorted(first) {
			t.Errorf("%s: versions arrived as %v", subject, versions)
		}
		after := last[subject].After
		_, got := s2.call(http.MethodGet, "/internal/quota/"+after.UserID, "")
		want := map[string]any{}
		b, _ := json.Marshal(after)
		if err := json.Unmarshal(b, &want); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: the topic's last value is not the quota: %s", subject, diff)
		}
	}
}

// The relay makes its own topic, compacted, and writes to the real Apache Kafka as to the embedded one.
func TestRelayWorksOnRealKafka(t *testing.T) {
	broker := realkafka.Shared(t).Addr
	server := stores.Redis(t)
	s := start(t, stores.Postgres(t), server.URL(), broker)
	for i := range 20 {
		s.put(fmt.Sprintf("u%d", i%4), fmt.Sprintf(`{"rpm_limit":%d}`, i))
	}
	versions := map[string]int64{}
	n := 0
	events(t, broker, func(m kafka.Message) bool {
		var ev pgquota.QuotaChanged
		if err := json.Unmarshal(m.Value, &ev); err != nil {
			t.Error(err)
		}
		if ev.Version < versions[ev.Subject] {
			t.Errorf("%s: version %d after %d", ev.Subject, ev.Version, versions[ev.Subject])
		}
		versions[ev.Subject] = ev.Version
		n++
		return n == 20
	})
	client := kafka.Client{Addr: kafka.TCP(broker), Timeout: 10 * time.Second}
	resp, err := client.DescribeConfigs(t.Context(), &kafka.DescribeConfigsRequest{Resources: []kafka.DescribeConfigRequestResource{
		{ResourceType: kafka.ResourceTypeTopic, ResourceName: usage.QuotaTopic, ConfigNames: []string{"cleanup.policy"}}}})
	if err != nil {
		t.Fatal(err)
	}
	if got := resp.Resources[0].ConfigEntries[0].ConfigValue; got != "compact" {
		t.Errorf("cleanup.policy is %q", got)
	}
}

func eventSchema(t *testing.T, event string) *jsonschema.Schema {
	t.Helper()
	name := "events/" + event + ".schema.json"
	data, err := fs.ReadFile(schemas.FS, name)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource(name, doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStopsInReverseOrder(t *testing.T) {
	server := stores.Redis(t)
	s := start(t, stores.Postgres(t), server.URL(), stores.Kafka(t).Addr)
	s.put("u1", `{"tier":"plus"}`)
	s.stop()
	var stopped []string
	for line := range strings.Lines(s.log.String()) {
		var l struct{ Msg, Part string }
		if json.Unmarshal([]byte(line), &l) == nil && l.Msg == "stopped" {
			stopped = append(stopped, l.Part)
		}
	}
	want := []string{"readiness", "http", "refusal log", "redis relay", "kafka relay", "outbox watch", "kafka", "redis", "postgres", "traces"}
	if !slices.Equal(stopped, want) {
		t.Errorf("stopped %q, want %q", stopped, want)
	}
	if strings.Contains(s.log.String(), "canary") {
		t.Error("the token is in the log")
	}
}

func TestUnreachablePostgresEndsTheStart(t *testing.T) {
	err := Run(t.Context(), Config{Addr: "127.0.0.1:0", PostgresURL: "postgres://u:hunter2@127.0.0.1:1/db", RedisURL: "redis://127.0.0.1:1",
		KafkaBrokers: []string{"127.0.0.1:1"}, AdminToken: adminToken})
	if err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Error(err)
	}
}
