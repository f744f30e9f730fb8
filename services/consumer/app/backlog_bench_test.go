package app

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/segmentio/kafka-go"

	"github.com/tollgate-dev/tollgate/pkg/clickhouseledger"
	"github.com/tollgate-dev/tollgate/pkg/embedded/process"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/testkit/realkafka"
	"github.com/tollgate-dev/tollgate/pkg/testkit/stores"
	"github.com/tollgate-dev/tollgate/pkg/usage"
)

var backlog = flag.Int("backlog", 100_000, "messages that wait when the consumer of BenchmarkBacklog starts")

// BenchmarkBacklog lets a consumer, a process of its own with the settings that it has by default, drain a backlog from a real Kafka into
// ClickHouse. It tells the rate, and the most memory that the process ever had (VmHWM), which must not grow with the backlog.
// Run it with -benchtime=1x; 5,000,000 messages need 4 GB of disk and -timeout=30m.
func BenchmarkBacklog(b *testing.B) {
	bin := filepath.Join(b.TempDir(), "consumer")
	if out, err := exec.CommandContext(b.Context(), "go", "build", "-o", bin, "../cmd/consumer").CombinedOutput(); err != nil {
		b.Fatalf("build the consumer: %v\n%s", err, out)
	}
	for b.Loop() {
		s := realkafka.Start(b)
		for topic, n := range map[string]int32{usage.Topic: 12, usage.DeadLetterTopic: 1, usage.QuotaTopic: 12} {
			s.CreateTopic(b, topic, n, nil)
		}
		fill(b, s.Brokers(), *backlog)
		drain(b, bin, s.Brokers(), stores.ClickHouse(b).DSN, *backlog)
		s.Stop(b)
	}
}

// fill produces n events of 5,000 users, 2,000 a second by their timestamps.
func fill(b *testing.B, brokers []string, n int) {
	b.Helper()
	transport := &kafka.Transport{}
	defer transport.CloseIdleConnections()
	w := &kafka.Writer{Addr: kafka.TCP(brokers...), Transport: transport, Topic: usage.Topic, RequiredAcks: kafka.RequireAll, BatchTimeout: 10 * time.Millisecond,
		BatchSize: 1000, Balancer: &kafka.Hash{}}
	rng := rand.New(rand.NewPCG(1, 2))
	zipf := rand.NewZipf(rng, 1.05, 20, 4999)
	const chunk = 20_000
	for at := 0; at < n; at += chunk {
		messages := make([]kafka.Message, min(chunk, n-at))
		for i := range messages {
			m, err := usage.Encode(someUsage(rng, zipf.Uint64(), at+i), "/bench")
			if err != nil {
				b.Fatal(err)
			}
			messages[i] = kafka.Message{Key: m.Key, Value: m.Value}
			for _, h := range m.Headers {
				messages[i].Headers = append(messages[i].Headers, kafka.Header{Key: h.Key, Value: []byte(h.Value)})
			}
		}
		if err := w.WriteMessages(b.Context(), messages...); err != nil {
			b.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
}

func someUsage(rng *rand.Rand, user uint64, i int) usage.Record {
	at := noon.Add(time.Duration(i) * 500 * time.Microsecond)
	r := usage.Record{SchemaVersion: usage.SchemaVersion, UserID: fmt.Sprintf("user-%06d", user), OrgID: fmt.Sprintf("org-%02d", user%50),
		Tier: []string{"free", "plus", "api", "enterprise"}[user%4], RequestID: uuid.Must(uuid.NewV7()), Model: []string{"grok-2", "grok-2-mini"}[i%2],
		InputTokens: rng.Int64N(4000), OutputTokens: rng.Int64N(1500), ReservedTokens: 6000, LatencyMS: rng.Int64N(9000), Timestamp: usage.At(at),
		Outcome: usage.Completed, Reservation: usage.Held, Region: "eu-west", Instance: fmt.Sprintf("enforcement-%d", i%3)}
	r.RequestedModel = r.Model
	r.EventID = usage.EventID(subject.Subject{Kind: subject.User, ID: r.UserID}, r.RequestID, usage.KindUsage)
	return r
}

// drain runs a consumer until the ledger has n events.
func drain(b *testing.B, bin string, brokers []string, dsn string, n int) {
	b.Helper()
	log, err := os.Create(filepath.Join(b.TempDir(), "log"))
	if err != nil {
		b.Fatal(err)
	}
	defer log.Close()
	port, err := process.FreePort()
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(bin)
	cmd.Env = append(os.Environ(), "TOLLGATE_KAFKA_BROKERS="+strings.Join(brokers, ","), "TOLLGATE_CLICKHOUSE_URL="+dsn, "TOLLGATE_CONSUMER_ADDR="+process.Addr(port))
	cmd.Stderr = log
	db, err := clickhouseledger.OpenSQL(dsn)
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	child, err := process.Start(cmd, syscall.SIGKILL)
	if err != nil {
		b.Fatal(err)
	}
	defer child.Kill()
	stored := func() (got int) {
		// The table is not there before the consumer has made it.
		_ = db.QueryRowContext(context.Background(), "SELECT toInt64(sum(events)) FROM usage_ledger WHERE grain = 'day'").Scan(&got)
		return got
	}
	var began time.Time
	first := 0
	for got := 0; got < n; got = stored() {
		if got > 0 && began.IsZero() {
			began, first = time.Now(), got
		}
		select {
		case <-child.Done():
			text, _ := os.ReadFile(log.Name())
			b.Fatalf("the consumer has ended: %v\n%s", child.Err(), text)
		case <-time.After(100 * time.Millisecond):
		}
	}
	b.ReportMetric(float64(n-first)/time.Since(began).Seconds(), "events/s")
	b.ReportMetric(mostMemory(b, child.Pid()), "peak-MiB")
}

// mostMemory is the high-water mark of what a process had in memory, in MiB.
func mostMemory(b *testing.B, pid int) float64 {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), "VmHWM:")
	var kib float64
	if _, err := fmt.Sscan(after, &kib); err != nil {
		b.Fatalf("VmHWM: %v", err)
	}
	return kib / 1024
}
