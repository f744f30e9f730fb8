package kafka

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	kafkago "github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tollgate-dev/tollgate/pkg/embedded/process"
	"github.com/tollgate-dev/tollgate/pkg/testkit/crash"
)

const (
	topic = "usage.records.v1"
	group = "ledger"
)

func testOptions(dir string) Options {
	return Options{Dir: dir, Log: os.Stderr, Topics: []Topic{
		{Name: topic, Partitions: 3},
		{Name: "quota.changes.v1", Partitions: 2, Configs: map[string]string{"cleanup.policy": "compact"}},
	}}
}

func start(t *testing.T, o Options) *Server {
	t.Helper()
	s, err := Start(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

func client(t *testing.T, s *Server, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	c, err := kgo.NewClient(append(opts, kgo.SeedBrokers(s.Brokers()...))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// writeAndCommit writes n records by kafka-go, reads half of them in a group and commits those.
func writeAndCommit(t *testing.T, s *Server, n int) {
	t.Helper()
	w := &kafkago.Writer{Addr: kafkago.TCP(s.Addr), Topic: topic, RequiredAcks: kafkago.RequireAll, Balancer: &kafkago.Hash{}, BatchTimeout: time.Millisecond}
	defer w.Close()
	var ms []kafkago.Message
	for i := range n {
		ms = append(ms, kafkago.Message{Key: []byte(fmt.Sprint("org-", i)), Value: []byte(fmt.Sprint(i)), Headers: []kafkago.Header{{Key: "ce_id", Value: []byte("x")}}})
	}
	if err := w.WriteMessages(t.Context(), ms...); err != nil {
		t.Fatal(err)
	}
	if got := len(readGroup(t, s, n/2)); got != n/2 {
		t.Fatalf("read %d", got)
	}
}

// readGroup reads n messages as a member of the group by kafka-go and commits them.
func readGroup(t *testing.T, s *Server, n int) map[string]bool {
	t.Helper()
	r := kafkago.NewReader(kafkago.ReaderConfig{Brokers: s.Brokers(), GroupID: group, Topic: topic, StartOffset: kafkago.FirstOffset, MaxWait: 100 * time.Millisecond})
	defer r.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	seen := map[string]bool{}
	for range n {
		m, err := r.FetchMessage(ctx)
		if err != nil {
			t.Fatal(err)
		}
		seen[string(m.Value)] = true
		if err := r.CommitMessages(ctx, m); err != nil {
			t.Fatal(err)
		}
	}
	return seen
}

// checkKept looks at what writeAndCommit has left, after a restart.
func checkKept(t *testing.T, s *Server, n int) {
	t.Helper()
	admin := kadm.NewClient(client(t, s))
	topics, err := admin.ListTopics(t.Context())
	if err != nil || len(topics[topic].Partitions) != 3 || len(topics["quota.changes.v1"].Partitions) != 2 {
		t.Fatalf("topics: %v, %v", topics, err)
	}
	configs, err := admin.DescribeTopicConfigs(t.Context(), "quota.changes.v1")
	if err != nil {
		t.Fatal(err)
	}
	policy := ""
	for _, c := range configs[0].Configs {
		if c.Key == "cleanup.policy" {
			policy = c.MaybeValue()
		}
	}
	if policy != "compact" {
		t.Fatalf("cleanup.policy is %q", policy)
	}
	lag, err := admin.Lag(t.Context(), group)
	l := lag[group]
	if err != nil || l.Error() != nil {
		t.Fatalf("lag: %v, %v", err, l.Error())
	}
	if total := l.Lag.Total(); total != int64(n-n/2) {
		t.Fatalf("%d records are not committed, not %d: commits or records are lost", total, n-n/2)
	}
	c := client(t, s, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for seen := 0; seen < n; {
		f := c.PollFetches(ctx)
		if err := f.Err(); err != nil {
			t.Fatalf("%d of %d records: %v", seen, n, err)
		}
		seen += f.NumRecords()
	}
	if got := len(readGroup(t, s, n-n/2)); got != n-n/2 {
		t.Fatalf("the group read %d other records, not %d", got, n-n/2)
	}
}

func TestRecordsTopicsAndCommitsOutliveAnOrderlyStop(t *testing.T) {
	dir := t.TempDir()
	s := start(t, testOptions(dir))
	writeAndCommit(t, s, 20)
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	s = start(t, testOptions(dir))
	t.Logf("warm start %s", time.Since(began))
	checkKept(t, s, 20)
}

func TestRecordsTopicsAndCommitsSurviveKill(t *testing.T) {
	victim, dir := crash.Start(t, func() string {
		dir := t.TempDir()
		writeAndCommit(t, start(t, testOptions(dir)), 20)
		return dir
	})
	victim.Kill()
	checkKept(t, start(t, testOptions(dir)), 20)
}

// TestAcknowledgedRecordsSurviveKillUnderLoad kills the broker while it is written to.
func TestAcknowledgedRecordsSurviveKillUnderLoad(t *testing.T) {
	type running struct{ Dir, Addr string }
	victim, r := crash.Start(t, func() running {
		dir := t.TempDir()
		return running{dir, start(t, testOptions(dir)).Addr}
	})
	c, err := kgo.NewClient(kgo.SeedBrokers(r.Addr), kgo.DefaultProduceTopic(topic), kgo.DisableIdempotentWrite())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	acked := map[string]bool{}
	// An idempotent producer would hold on to a record whose fate is unknown for ever, whatever becomes of its context.
	writing, cancelWriting := context.WithCancel(t.Context())
	defer cancelWriting()
	const enough = 200
	for i := 0; ; i++ {
		v := fmt.Sprint(i)
		if err := c.ProduceSync(writing, &kgo.Record{Key: []byte(v), Value: []byte(v)}).FirstErr(); err != nil {
			break // killed
		}
		acked[v] = true
		if len(acked) == enough {
			go func() {
				victim.Kill()
				cancelWriting()
			}()
		}
	}
	if len(acked) < enough {
		t.Fatalf("only %d records acknowledged", len(acked))
	}
	victim.Kill()
	s := start(t, testOptions(r.Dir))
	reader := client(t, s, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for total := len(acked); len(acked) > 0; {
		f := reader.PollFetches(ctx)
		if err := f.Err(); err != nil {
			t.Fatalf("%d of %d acknowledged records lost: %v", len(acked), total, err)
		}
		f.EachRecord(func(r *kgo.Record) { delete(acked, string(r.Value)) })
	}
}

func TestNewTopicsAreMadeOnOldData(t *testing.T) {
	o := testOptions(t.TempDir())
	s := start(t, o)
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	o.Topics = append(o.Topics, Topic{Name: "usage.records.v1.dlq", Partitions: 1})
	topics, err := kadm.NewClient(client(t, start(t, o))).ListTopics(t.Context())
	if err != nil || len(topics) != 3 {
		t.Fatalf("topics %v, %v", topics.Names(), err)
	}
}

func TestNamingATopicDoesNotMakeIt(t *testing.T) {
	c := client(t, start(t, testOptions(t.TempDir())), kgo.UnknownTopicRetries(0))
	if err := c.ProduceSync(t.Context(), &kgo.Record{Topic: "typo", Value: []byte("v")}).FirstErr(); err == nil {
		t.Fatal("written")
	}
}

func TestSecondBrokerOnADirectoryIsRefused(t *testing.T) {
	dir := t.TempDir()
	start(t, testOptions(dir))
	_, err := Start(t.Context(), testOptions(dir))
	if !errors.Is(err, process.ErrLocked) {
		t.Fatalf("got %v", err)
	}
	t.Log(err)
}

func TestPortInUseIsNamed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = Start(t.Context(), Options{Dir: t.TempDir(), Port: l.Addr().(*net.TCPAddr).Port})
	if !errors.Is(err, process.ErrPortInUse) {
		t.Fatalf("got %v", err)
	}
}
