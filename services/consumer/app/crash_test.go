package app

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/segmentio/kafka-go"

	"github.com/tollgate-dev/tollgate/migrations"
	"github.com/tollgate-dev/tollgate/pkg/clickhouseledger"
	"github.com/tollgate-dev/tollgate/pkg/config"
	"github.com/tollgate-dev/tollgate/pkg/embedded/clickhouse"
	embeddedkafka "github.com/tollgate-dev/tollgate/pkg/embedded/kafka"
	"github.com/tollgate-dev/tollgate/pkg/testkit/crash"
	"github.com/tollgate-dev/tollgate/pkg/testkit/realkafka"
	"github.com/tollgate-dev/tollgate/pkg/testkit/stores"
	"github.com/tollgate-dev/tollgate/pkg/usage"
	"github.com/tollgate-dev/tollgate/services/consumer/internal/consume"
	"github.com/tollgate-dev/tollgate/services/consumer/internal/kafkadeadletters"
	"github.com/tollgate-dev/tollgate/services/consumer/internal/kafkasource"
)

func TestStopFlushesThenCommits(t *testing.T) {
	onBothBrokers(t, func(t *testing.T, r *rig) {
		c := r.start(func(c *Config) { c.BatchInterval, c.LogLevel = time.Minute, slog.LevelDebug }) // nothing is stored before its time
		r.produce(family("acme", 10)...)
		r.eventually(func() string {
			if n := c.metric("tollgate_consumer_fetched_total"); n != 10 {
				return fmt.Sprintf("%v messages fetched", n)
			}
			if code, body := c.get("/readyz"); code != 200 {
				return "not ready: " + body
			}
			return ""
		})
		if n := r.mustCount("SELECT count() FROM usage_events"); n != 0 {
			t.Fatalf("%d events are stored already: this proves nothing", n)
		}
		c.mustStop()
		r.mustSay("after the stop", 10, 100)
		if left, err := r.uncommitted(); err != nil || left != 0 {
			t.Errorf("%d messages are not committed (%v)", left, err)
		}
		want := []string{"readiness", "prices", "loop", "reconcile", "reconcile connection", "lag", "event log", "dead letters", "clickhouse", "http"}
		if got := c.stopped(); !slices.Equal(got, want) {
			t.Errorf("stopped %v, want %v", got, want)
		}
	})
}

func TestRestartResumesWithoutLoss(t *testing.T) {
	onBothBrokers(t, func(t *testing.T, r *rig) {
		all := family("acme", 60)
		r.produce(all[:20]...) // before the group exists: a new one begins at the earliest
		c := r.start()
		r.awaitEvents(20)
		c.mustStop()
		r.produce(all[20:40]...)
		again := r.start()
		r.awaitEvents(40)
		r.awaitCommitted()
		again.mustStop()
		if n := again.metric("tollgate_consumer_fetched_total"); n > 20 {
			t.Errorf("fetched %v messages after the restart, want the 20 new ones", n)
		}
		r.produce(all[40:]...)
		r.start()
		r.awaitEvents(60)
		r.mustSay("after two restarts", 60, 600)
	})
}

// Two consumers share the group; one leaves while messages flow. Some come to both, none is lost, none counts twice.
func TestRebalanceLosesNothingAndCountsOnce(t *testing.T) {
	onBothBrokers(t, func(t *testing.T, r *rig) {
		const step = 60
		var sent int
		send := func() {
			var next []kafka.Message
			for ; len(next) < step; sent++ {
				next = append(next, in(sent%partitions, record("acme", sent)))
			}
			r.produce(next...)
		}
		a := r.start()
		send()
		r.awaitEvents(step)
		b := r.start(func(c *Config) { c.Addr, c.Instance = freeAddr(t), "second" })
		r.eventually(func() string { // until the second has its share
			send()
			if n := b.metric("tollgate_consumer_fetched_total"); n < 1 {
				return "the second consumer was given nothing"
			}
			return ""
		})
		before := a.metric("tollgate_consumer_fetched_total")
		send()
		a.mustStop()
		for range 10 {
			send()
		}
		r.awaitEvents(uint64(sent))
		r.awaitCommitted()
		r.mustSay("after the rebalances", uint64(sent), uint64(10*sent))
		if before < step {
			t.Errorf("the first consumer fetched %v messages: this proves nothing", before)
		}
		b.mustStop()
	})
}

func TestClickHouseAwayLosesNothing(t *testing.T) {
	const password = "of-this-test-alone"
	dir := t.TempDir()
	server, err := clickhouse.Start(t.Context(), clickhouse.Options{Dir: dir, AppPassword: password})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	r := newRig(t, embeddedBroker(t), server.DSN(clickhouse.Database))
	_, port, _ := strings.Cut(server.TCPAddr, ":")
	restart := clickhouse.Options{Dir: dir, AppPassword: password}
	if _, err := fmt.Sscan(port, &restart.TCPPort); err != nil {
		t.Fatal(err)
	}
	c := r.start(func(c *Config) { c.BatchRecords = 100 })
	all := family("acme", 3000)
	r.produce(all[:50]...)
	r.awaitEvents(50)

	if err := server.Close(t.Context()); err != nil { // in the middle of the consumer's life, with its connections open
		t.Fatal(err)
	}
	r.produce(all[50:]...)
	r.eventually(func() string {
		if c.metric(`tollgate_consumer_failures_total{step="insert"}`) < 2 {
			return "no insert has failed"
		}
		if code, _ := c.get("/readyz"); code != 503 {
			return "still ready"
		}
		if code, _ := c.get("/healthz"); code != 200 {
			return "not alive"
		}
		return ""
	})
	if n := c.metric("tollgate_consumer_fetched_total"); n > 50+100 {
		t.Errorf("fetched %v messages, more than the one batch it may hold", n)
	}
	if server, err = clickhouse.Start(t.Context(), restart); err != nil {
		t.Fatal(err)
	}
	r.awaitEvents(3000)
	r.awaitCommitted()
	r.mustSay("after ClickHouse came back", 3000, 30000)
	c.mustStop() // before its server
}

// A consumer whose stores are not there yet waits for them, alive but not ready.
func TestTopicThatDoesNotExistYetIsWaitedFor(t *testing.T) {
	s := stores.Kafka(t)
	r := newRig(t, broker{s.Brokers(), usage.Topic, usage.DeadLetterTopic}, stores.ClickHouse(t).DSN)
	c := r.start()
	r.eventually(func() string {
		if !strings.Contains(c.log.String(), "waiting for Kafka and the topic") {
			return "the log says nothing of the missing topic"
		}
		if code, _ := c.get("/readyz"); code != 503 {
			return "ready without a topic"
		}
		return ""
	})
	for name, n := range map[string]int32{usage.Topic: partitions, usage.DeadLetterTopic: 1} {
		if err := s.Cluster().CreateTopic(name, n, nil); err != nil {
			t.Fatal(err)
		}
	}
	r.produce(family("acme", 5)...)
	r.awaitEvents(5)
}

func TestStopWhileWaitingIsNoFailure(t *testing.T) {
	r := newRig(t, broker{stores.Kafka(t).Brokers(), usage.Topic, usage.DeadLetterTopic}, stores.ClickHouse(t).DSN)
	c := r.start()
	r.eventually(func() string {
		if !strings.Contains(c.log.String(), "waiting for Kafka and the topic") {
			return "not waiting yet"
		}
		return ""
	})
	c.mustStop()
}

// uncommitting is a source whose commits never come back: the process is killed in one.
type uncommitting struct {
	*kafkasource.Source
	reached chan<- struct{}
}

func (u uncommitting) Commit(ctx context.Context, _ []consume.Position) error {
	u.reached <- struct{}{}
	select {}
}

// The process dies between the insert and the commit: its successor reads all of it again, and it counts once.
func TestKillBetweenInsertAndCommitCountsOnce(t *testing.T) {
	onBothBrokersWithVictim(t, func(t *testing.T, cfg Config) {
		victim, _ := crash.Start(t, func() int {
			log := slog.New(slog.DiscardHandler)
			store, err := clickhouseledger.Open(cfg.ClickHouseURL.Reveal())
			if err != nil {
				t.Fatal(err)
			}
			source, err := kafkasource.Open(t.Context(), kafkasource.Config{Brokers: cfg.KafkaBrokers, Topic: cfg.Topic, Group: cfg.Group, ClientID: "victim", Queue: 100}, log)
			if err != nil {
				t.Fatal(err)
			}
			reached := make(chan struct{})
			loop := &consume.Loop{Source: uncommitting{source, reached}, Ledger: ledger{store}, DeadLetters: kafkadeadletters.Open(cfg.KafkaBrokers, cfg.DeadLetterTopic, "victim"),
				Log: log, Now: time.Now, Metrics: consume.NewMetrics(prometheus.NewRegistry(), time.Now), Limits: consume.Limits{Count: 50, Bytes: 1 << 20, Wait: time.Minute}}
			go func() { _ = loop.Run(context.Background()) }() // until killed
			<-reached
			return 0
		})
		victim.Kill()
		r := &rig{t: t, cfg: cfg, ch: connect(t, cfg.ClickHouseURL.Reveal())}
		r.awaitEvents(50)
		if left, err := r.uncommitted(); err != nil || left != 120 {
			t.Fatalf("%d messages are uncommitted (%v), want all 120: the kill was too late", left, err)
		}
		c := r.start(func(c *Config) { c.BatchRecords = 70 }) // batches are cut elsewhere
		r.awaitEvents(120)
		r.awaitCommitted()
		r.mustSay("after the kill", 120, 1200)
		if n := c.metric("tollgate_consumer_fetched_total"); n != 120 {
			t.Errorf("the successor fetched %v messages, want all 120 again", n)
		}
	})
}

// onBothBrokersWithVictim is onBothBrokers for a test that runs in two processes: the victim uses the stores of its parent, which have
// 120 messages waiting.
func onBothBrokersWithVictim(t *testing.T, test func(t *testing.T, cfg Config)) {
	const brokersEnv, topicEnv, deadEnv, dsnEnv, groupEnv = "TEST_BROKERS", "TEST_TOPIC", "TEST_DEAD", "TEST_DSN", "TEST_GROUP"
	for _, kind := range []string{"embedded", "real"} {
		t.Run(kind, func(t *testing.T) {
			if os.Getenv(dsnEnv) != "" {
				test(t, Config{KafkaBrokers: strings.Split(os.Getenv(brokersEnv), ","), Topic: os.Getenv(topicEnv), DeadLetterTopic: os.Getenv(deadEnv),
					ClickHouseURL: config.Secret(os.Getenv(dsnEnv)), Group: os.Getenv(groupEnv)})
				return
			}
			b := broker{}
			if kind == "real" {
				s := realkafka.Shared(t)
				b = broker{s.Brokers(), s.FreshTopic(t, partitions), s.FreshTopic(t, 1)}
			} else {
				b = embeddedBroker(t)
			}
			r := newRig(t, b, stores.ClickHouse(t).DSN)
			db, err := clickhouseledger.OpenSQL(r.cfg.ClickHouseURL.Reveal())
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			if err := migrations.ClickHouse(t.Context(), db); err != nil {
				t.Fatal(err)
			}
			r.produce(family("acme", 120)...)
			for k, v := range map[string]string{brokersEnv: strings.Join(b.addrs, ","), topicEnv: b.topic, deadEnv: b.deadLetters, dsnEnv: r.cfg.ClickHouseURL.Reveal(), groupEnv: r.cfg.Group} {
				t.Setenv(k, v)
			}
			test(t, r.cfg)
		})
	}
}

// The log survives a restart of the embedded broker, and the consumer goes on.
func TestKafkaAwayLosesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "kafka")
	options := embeddedkafka.Options{Dir: dir, NoSync: true, Topics: []embeddedkafka.Topic{{Name: usage.Topic, Partitions: partitions}, {Name: usage.DeadLetterTopic, Partitions: 1}}}
	s, err := embeddedkafka.Start(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := strings.Cut(s.Addr, ":")
	if _, err := fmt.Sscan(port, &options.Port); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, broker{s.Brokers(), usage.Topic, usage.DeadLetterTopic}, stores.ClickHouse(t).DSN)
	c := r.start()
	all := family("acme", 200)
	r.produce(all[:100]...)
	r.awaitEvents(100)
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.eventually(func() string {
		if code, _ := c.get("/readyz"); code != 503 {
			return "still ready"
		}
		return ""
	})
	if s, err = embeddedkafka.Start(t.Context(), options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	r.produce(all[100:]...)
	r.awaitEvents(200)
	r.mustSay("after Kafka came back", 200, 2000)
	r.produce(kafka.Message{Key: []byte("0"), Value: []byte("not json")})
	r.awaitCommitted()
	c.mustStop()
}
