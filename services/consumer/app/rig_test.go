package app

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	clickhousego "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/google/uuid"
	"github.com/segmentio/kafka-go"

	"github.com/tollgate-dev/tollgate/pkg/config"
	embeddedkafka "github.com/tollgate-dev/tollgate/pkg/embedded/kafka"
	"github.com/tollgate-dev/tollgate/pkg/testkit/realkafka"
	"github.com/tollgate-dev/tollgate/pkg/testkit/stores"
	"github.com/tollgate-dev/tollgate/pkg/usage"
)

func TestMain(m *testing.M) { stores.Main(m, realkafka.StopShared) }

const (
	partitions = 3
	deadline   = 40 * time.Second // for what must happen soon
	poll       = 20 * time.Millisecond
)

// onBothBrokers runs a test on the embedded Kafka and on a real one.
func onBothBrokers(t *testing.T, test func(t *testing.T, r *rig)) {
	t.Run("embedded", func(t *testing.T) { test(t, newRig(t, embeddedBroker(t), stores.ClickHouse(t).DSN)) })
	t.Run("real", func(t *testing.T) {
		s := realkafka.Shared(t)
		test(t, newRig(t, broker{s.Brokers(), s.FreshTopic(t, partitions), s.FreshTopic(t, 1)}, stores.ClickHouse(t).DSN))
	})
}

type broker struct {
	addrs              []string
	topic, deadLetters string
}

func embeddedBroker(t *testing.T) broker {
	s := stores.Kafka(t, embeddedkafka.Topic{Name: usage.Topic, Partitions: partitions}, embeddedkafka.Topic{Name: usage.DeadLetterTopic, Partitions: 1})
	return broker{s.Brokers(), usage.Topic, usage.DeadLetterTopic}
}

// rig is a broker, a ledger and a consumer between them.
type rig struct {
	t   *testing.T
	cfg Config
	ch  driver.Conn
}

func newRig(t *testing.T, b broker, dsn string) *rig {
	t.Helper()
	r := &rig{t: t, cfg: Config{KafkaBrokers: b.addrs, Topic: b.topic, DeadLetterTopic: b.deadLetters, ClickHouseURL: config.Secret(dsn), Addr: freeAddr(t),
		Group: "test-" + uuid.NewString(), BatchRecords: 5000, BatchBytes: 16 << 20, BatchInterval: 50 * time.Millisecond, Reconcile: time.Minute, Instance: "test"}}
	if err := r.cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	r.ch = connect(t, dsn)
	return r
}

func connect(t *testing.T, dsn string) driver.Conn {
	t.Helper()
	o, err := clickhousego.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := clickhousego.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // its server may be gone by then
	return conn
}

func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// lockedBuffer keeps a consumer's log.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// running is a consumer in this process.
type running struct {
	t    *testing.T
	cfg  Config
	log  *lockedBuffer
	stop func() error // at once the second time
}

// start starts a consumer and does not wait until it is ready.
func (r *rig) start(change ...func(*Config)) *running {
	r.t.Helper()
	c := &running{t: r.t, cfg: r.cfg, log: &lockedBuffer{}}
	for _, f := range change {
		f(&c.cfg)
	}
	c.cfg.LogTo = c.log
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	var err error
	go func() { defer close(done); err = Run(ctx, c.cfg) }()
	c.stop = func() error { cancel(); <-done; return err }
	r.t.Cleanup(func() {
		if err := c.stop(); err != nil && !r.t.Failed() {
			r.t.Errorf("the consumer ended with: %v", err)
		}
		if r.t.Failed() {
			r.t.Logf("log of the consumer:\n%s", c.log)
		}
	})
	return c
}

func (c *running) mustStop() {
	c.t.Helper()
	if err := c.stop(); err != nil {
		c.t.Fatalf("stop: %v", err)
	}
}

func (c *running) get(path string) (int, string) {
	req, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, "http://"+c.cfg.Addr+path, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(b)
}

// metric reads one series, such as `name{label="value"}`; -1 if it can't be had.
func (c *running) metric(series string) float64 {
	_, body := c.get("/metrics")
	m := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(series) + ` (\S+)$`).FindStringSubmatch(body)
	if m == nil {
		return -1
	}
	v, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		return -1
	}
	return v
}

// stopped gives the parts in the order in which they stopped.
func (c *running) stopped() (parts []string) {
	for line := range strings.Lines(c.log.String()) {
		var l struct{ Msg, Part string }
		if err := json.Unmarshal([]byte(line), &l); err == nil && l.Msg == "stopped" {
			parts = append(parts, l.Part)
		}
	}
	return parts
}

// eventually waits until check gives "".
func (r *rig) eventually(check func() string) {
	r.t.Helper()
	end := time.Now().Add(deadline)
	for {
		why := check()
		if why == "" {
			return
		}
		if time.Now().After(end) {
			r.t.Fatalf("not within %s: %s", deadline, why)
		}
		time.Sleep(poll)
	}
}

// awaitEvents waits until the ledger has n distinct events, and fails at once if it has more.
func (r *rig) awaitEvents(n uint64) {
	r.t.Helper()
	r.eventually(func() string {
		got, err := r.count("SELECT count() FROM usage_events")
		if got > n {
			r.t.Fatalf("the ledger has %d events, want %d", got, n)
		}
		if err != nil || got < n {
			return fmt.Sprintf("the ledger has %d events, want %d (%v)", got, n, err)
		}
		return ""
	})
}

func (r *rig) count(query string, args ...any) (n uint64, err error) {
	err = r.ch.QueryRow(context.Background(), query, args...).Scan(&n)
	return n, err
}

func (r *rig) mustCount(query string, args ...any) uint64 {
	r.t.Helper()
	n, err := r.count(query, args...)
	if err != nil {
		r.t.Fatalf("%s: %v", query, err)
	}
	return n
}

// awaitCommitted waits until the group has committed everything.
func (r *rig) awaitCommitted() {
	r.t.Helper()
	r.eventually(func() string {
		left, err := r.uncommitted()
		if err != nil || left != 0 {
			return fmt.Sprintf("%d messages are not committed (%v)", left, err)
		}
		return ""
	})
}

func (r *rig) client() (c *kafka.Client, done func()) {
	transport := &kafka.Transport{}
	return &kafka.Client{Addr: kafka.TCP(r.cfg.KafkaBrokers...), Transport: transport}, transport.CloseIdleConnections
}

func (r *rig) uncommitted() (left int64, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	client, done := r.client()
	defer done()
	var ids []int
	var ask []kafka.OffsetRequest
	for p := range partitions {
		ids, ask = append(ids, p), append(ask, kafka.LastOffsetOf(p))
	}
	ends, err := client.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{r.cfg.Topic: ask}})
	if err != nil {
		return 0, err
	}
	at, err := client.OffsetFetch(ctx, &kafka.OffsetFetchRequest{GroupID: r.cfg.Group, Topics: map[string][]int{r.cfg.Topic: ids}})
	if err != nil {
		return 0, err
	}
	for _, p := range ends.Topics[r.cfg.Topic] {
		left += p.LastOffset
	}
	for _, p := range at.Topics[r.cfg.Topic] {
		left -= max(p.CommittedOffset, 0)
	}
	return left, nil
}

// produce appends messages as they are; Partition is honoured.
func (r *rig) produce(messages ...kafka.Message) {
	r.t.Helper()
	transport := &kafka.Transport{} // kafka-go's shared one may not have heard of this test's topic yet
	defer transport.CloseIdleConnections()
	w := &kafka.Writer{Addr: kafka.TCP(r.cfg.KafkaBrokers...), Transport: transport, Topic: r.cfg.Topic, RequiredAcks: kafka.RequireAll, BatchTimeout: time.Millisecond, BatchSize: 1000,
		Balancer: kafka.BalancerFunc(func(m kafka.Message, _ ...int) int {
			p, err := strconv.Atoi(string(m.Key))
			if err != nil {
				return 0
			}
			return p
		})}
	defer w.Close()
	if err := w.WriteMessages(r.t.Context(), messages...); err != nil {
		r.t.Fatalf("produce: %v", err)
	}
}

var noon = time.Date(2026, 5, 6, 12, 0, 0, 0, time.UTC)

// record is the i-th of a family of events: 7 input and 3 output tokens, one a second from noon.
func record(family string, i int) usage.Record {
	id := uuid.NewSHA1(uuid.NameSpaceOID, fmt.Appendf(nil, "%s %d", family, i))
	return usage.Record{EventID: id, SchemaVersion: usage.SchemaVersion, UserID: "u1", OrgID: family, Tier: "plus", RequestID: id, RequestedModel: "grok-2", Model: "grok-2",
		InputTokens: 7, OutputTokens: 3, ReservedTokens: 20, LatencyMS: 5, Timestamp: usage.At(noon.Add(time.Duration(i) * time.Second)), Outcome: usage.Completed,
		Reservation: usage.Held, Region: "eu", Instance: "i1"}
}

// in makes a record's message for a partition. The partition stands in the key, for the test's balancer.
func in(partition int, rec usage.Record) kafka.Message {
	m, err := usage.Encode(rec, "/test")
	if err != nil {
		panic(err)
	}
	out := kafka.Message{Key: []byte(strconv.Itoa(partition)), Value: m.Value}
	for _, h := range m.Headers {
		out.Headers = append(out.Headers, kafka.Header{Key: h.Key, Value: []byte(h.Value)})
	}
	return out
}

// family makes n messages, spread over the partitions.
func family(name string, n int) []kafka.Message {
	out := make([]kafka.Message, n)
	for i := range out {
		out[i] = in(i%partitions, record(name, i))
	}
	return out
}

func newDatabase(t *testing.T) string { t.Helper(); return stores.ClickHouse(t).DSN }

// replaced gives text with old, which must be there once, replaced.
func replaced(t *testing.T, text, old, new string) []byte {
	t.Helper()
	if strings.Count(text, old) != 1 {
		t.Fatalf("%q is not once in %s", old, text)
	}
	return []byte(strings.Replace(text, old, new, 1))
}
