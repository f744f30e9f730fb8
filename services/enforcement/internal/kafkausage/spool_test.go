package kafkausage

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	kafkago "github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tollgate-dev/tollgate/pkg/embedded/kafka"
	"github.com/tollgate-dev/tollgate/pkg/testkit/crash"
	"github.com/tollgate-dev/tollgate/pkg/testkit/realkafka"
	"github.com/tollgate-dev/tollgate/pkg/usage"
	"github.com/tollgate-dev/tollgate/services/enforcement/internal/boltspool"
	"github.com/tollgate-dev/tollgate/services/enforcement/internal/decide"
)

func TestMain(m *testing.M) { realkafka.Main(m) }

func spool(t testing.TB, dir string, o boltspool.Options) *boltspool.Spool {
	t.Helper()
	s, err := boltspool.Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// eventually waits until cond holds.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !cond(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("never: ", what)
		}
	}
}

// inOrder reads a topic to its end and gives, for each user, the numbers its events bear as latency, in the order in which each came
// first, and how many messages there are.
func inOrder(t *testing.T, brokers []string, topic string, distinct int) (byUser map[string][]int64, messages int) {
	t.Helper()
	c, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	byUser = map[string][]int64{}
	seen := map[uuid.UUID]bool{}
	for {
		// Once all are there, the rest of the log is looked at for some time.
		wait := 20 * time.Second
		if len(seen) >= distinct {
			wait = 500 * time.Millisecond
		}
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		f := c.PollFetches(ctx)
		over := ctx.Err() != nil
		cancel()
		f.EachRecord(func(r *kgo.Record) {
			rec, err := usage.Decode(r.Value)
			if err != nil || string(r.Key) != rec.Key() || header(r, "ce_id") != rec.EventID.String() || header(r, "ce_source") != Source {
				t.Errorf("key %s, headers %v, %v", r.Key, r.Headers, err)
			}
			messages++
			if !seen[rec.EventID] {
				seen[rec.EventID] = true
				byUser[rec.UserID] = append(byUser[rec.UserID], rec.LatencyMS)
			}
		})
		if over {
			break
		}
	}
	if len(seen) != distinct {
		t.Fatalf("%d distinct events in the log, want %d", len(seen), distinct)
	}
	return byUser, messages
}

// ofUser is the n-th event of a user.
func ofUser(user string, n int) usage.Record {
	r := record(0, "")
	r.UserID, r.RequestID, r.LatencyMS = user, uuid.NewSHA1(uuid.NameSpaceOID, fmt.Appendf(nil, "%s %d", user, n)), int64(n)
	r.EventID = usage.EventID(r.Subject(), r.RequestID, usage.KindUsage)
	return r
}

func portOf(t *testing.T, s *kafka.Server) int {
	t.Helper()
	_, p, err := net.SplitHostPort(s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(p)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func TestNothingIsSpooledWhileKafkaAnswers(t *testing.T) {
	s := broker(t, t.TempDir(), 0)
	sp := spool(t, t.TempDir(), boltspool.Options{})
	e := emitter(t, s, Options{Spool: sp})
	for i := range 20 {
		if err := e.Usage(t.Context(), record(i, "")); err != nil {
			t.Fatal(err)
		}
	}
	if seqs, _, err := sp.Oldest(1, 1); err != nil || len(seqs) != 0 {
		t.Error(seqs, err)
	}
	events(t, s, 20)
}

// Eight users record one after the other while Kafka goes away twice, once refusing connections and once swallowing requests.
func TestRecordsAreDurableAndInOrderWhileKafkaIsAway(t *testing.T) {
	dir := t.TempDir()
	s := broker(t, dir, 0)
	port := portOf(t, s)
	sp := spool(t, t.TempDir(), boltspool.Options{})
	e := emitter(t, s, Options{Spool: sp, Timeout: 300 * time.Millisecond})
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var total atomic.Int64
	for u := range 8 {
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				if err := e.Usage(t.Context(), ofUser(fmt.Sprintf("u%d", u), n)); err != nil {
					t.Error(err)
					return
				}
				total.Add(1)
			}
		})
	}
	more := func(what string, n int64) {
		t.Helper()
		from := total.Load()
		eventually(t, what, func() bool { return total.Load() >= from+n || t.Failed() })
	}
	more("records go to Kafka", 100)
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	more("records go to the spool", 400)
	if sp.Len() < 300 {
		t.Errorf("%d events in the spool", sp.Len())
	}
	s = broker(t, dir, port)
	eventually(t, "records go to Kafka again", func() bool { return !e.spooling.Load() })
	more("records go to Kafka again", 200)
	release := hold(s)
	more("records go to the spool again", 400)
	if !e.spooling.Load() {
		t.Error("nothing is spooled")
	}
	release()
	eventually(t, "records go to Kafka for the third time", func() bool { return !e.spooling.Load() })
	more("records go to Kafka for the third time", 100)
	stop()
	wg.Wait()
	eventually(t, "the spool is empty", func() bool { return sp.Len() == 0 })
	byUser, messages := inOrder(t, s.Brokers(), usage.Topic, int(total.Load()))
	for u, ns := range byUser {
		for i, n := range ns {
			if n != int64(i) {
				t.Fatalf("%s: event %d comes as number %d", u, n, i)
			}
		}
	}
	if messages <= int(total.Load()) {
		t.Error("nothing came twice, so this shows little")
	}
}

// Case B81: what was given up is delivered after all, and the spool delivers it as well: the same event twice, by its id one.
func TestB81EventThatTimedOutAndWasDeliveredIsTheSameEvent(t *testing.T) {
	s := broker(t, t.TempDir(), 0)
	sp := spool(t, t.TempDir(), boltspool.Options{})
	e := emitter(t, s, Options{Spool: sp, Timeout: 200 * time.Millisecond})
	release := hold(s)
	if err := e.Usage(t.Context(), ofUser("u", 0)); err != nil {
		t.Fatal(err)
	}
	for n := 1; n < 50; n++ { // these don't ask Kafka
		if err := e.Usage(t.Context(), ofUser("u", n)); err != nil {
			t.Fatal(err)
		}
	}
	if n := e.pending.Load(); n != 1 || sp.Len() != 50 {
		t.Errorf("%d events wait for Kafka, %d are in the spool", n, sp.Len())
	}
	release()
	eventually(t, "the spool is empty", func() bool { return sp.Len() == 0 && e.pending.Load() == 0 })
	byUser, messages := inOrder(t, s.Brokers(), usage.Topic, 50)
	if messages < 51 {
		t.Errorf("%d messages: nothing came twice, so this shows nothing", messages)
	}
	for i, n := range byUser["u"] {
		if n != int64(i) {
			t.Fatalf("order %v", byUser["u"])
		}
	}
}

func TestSpoolOfAnEarlierProcessIsDrainedAtTheStart(t *testing.T) {
	dir, spoolDir := t.TempDir(), t.TempDir()
	s := broker(t, dir, 0)
	port := portOf(t, s)
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	sp := spool(t, spoolDir, boltspool.Options{})
	e := New(Options{Brokers: s.Brokers(), Spool: sp, Timeout: 200 * time.Millisecond})
	for n := range 30 {
		if err := e.Usage(t.Context(), ofUser("u", n)); err != nil {
			t.Fatal(err)
		}
	}
	// The stop, while Kafka is away: it doesn't wait for Kafka, and keeps what is left.
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	if err := errors.Join(e.Close(ctx), sp.Close()); err != nil {
		t.Fatal(err)
	}
	s = broker(t, dir, port)
	sp = spool(t, spoolDir, boltspool.Options{})
	emitter(t, s, Options{Spool: sp})
	eventually(t, "the spool is empty", func() bool { return sp.Len() == 0 })
	inOrder(t, s.Brokers(), usage.Topic, 30)
}

// A process is killed while 16 callers record into its spool and Kafka is away; the next one is killed while it drains.
func TestKillLosesNoEventThatWasAnswered(t *testing.T) {
	const env = "TOLLGATE_TEST_SPOOL"
	base := os.Getenv(env)
	if base == "" {
		base = t.TempDir()
		t.Setenv(env, base)
	}
	spoolDir, acks, brokerFile := filepath.Join(base, "spool"), filepath.Join(base, "acks"), filepath.Join(base, "broker")
	start := func(record bool) func() int {
		return func() int {
			addr, err := os.ReadFile(brokerFile)
			if err != nil {
				panic(err)
			}
			sp, err := boltspool.Open(spoolDir, boltspool.Options{})
			if err != nil {
				panic(err)
			}
			f, err := os.OpenFile(acks, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
			if err != nil {
				panic(err)
			}
			e := New(Options{Brokers: []string{string(addr)}, Spool: sp, Timeout: 100 * time.Millisecond})
			for w := range 16 {
				go func() {
					for n := 0; record; n++ {
						r := ofUser(fmt.Sprintf("u%d", w), n)
						if e.Usage(context.Background(), r) == nil {
							fmt.Fprintln(f, r.EventID)
						}
					}
				}()
			}
			return 0
		}
	}
	if os.Getenv("TOLLGATE_TEST_SPOOL_DRAIN") != "" { // the second victim
		crash.Start(t, start(false))
	}
	dir := t.TempDir()
	var s *kafka.Server
	port := 0
	if os.Getenv(env+"_VICTIM") == "" {
		s = broker(t, dir, 0)
		port = portOf(t, s)
		if err := errors.Join(s.Close(t.Context()), os.WriteFile(brokerFile, []byte(s.Addr), 0o600)); err != nil {
			t.Fatal(err)
		}
		t.Setenv(env+"_VICTIM", "1")
	}
	v, _ := crash.Start(t, start(true))
	lines := func() (ids []string) {
		f, err := os.Open(acks)
		if err != nil {
			return nil
		}
		defer f.Close()
		for l := bufio.NewScanner(f); l.Scan(); {
			ids = append(ids, l.Text())
		}
		return ids
	}
	eventually(t, "the victim spools", func() bool { return len(lines()) > 5000 })
	v.Kill()

	s = broker(t, dir, port)
	var produced atomic.Int64
	s.Cluster().ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		s.Cluster().KeepControl()
		produced.Add(1)
		return nil, nil, false
	})
	t.Setenv("TOLLGATE_TEST_SPOOL_DRAIN", "1")
	v, _ = crash.Start(t, start(false))
	eventually(t, "the second victim drains", func() bool { return produced.Load() > 20 })
	v.Kill()

	acknowledged := lines()
	sp := spool(t, spoolDir, boltspool.Options{})
	left := sp.Len()
	emitter(t, s, Options{Spool: sp})
	eventually(t, "the spool is empty", func() bool { return sp.Len() == 0 })
	seen := events(t, s, len(acknowledged))
	twice := 0
	for _, id := range acknowledged {
		switch n := seen[uuid.MustParse(id)]; {
		case n == 0:
			t.Errorf("%s was answered and is lost", id)
		case n > 1:
			twice++
		}
	}
	t.Logf("%d answered; %d left after the second kill; %d came twice", len(acknowledged), left, twice)
}

func TestFullSpoolRefusesUntilThereIsRoom(t *testing.T) {
	dir := t.TempDir()
	s := broker(t, dir, 0)
	port := portOf(t, s)
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	sp := spool(t, t.TempDir(), boltspool.Options{MaxBytes: 20_000})
	e := emitter(t, s, Options{Spool: sp, Timeout: 200 * time.Millisecond})
	kept := 0
	var err error
	for ; err == nil && kept < 1000; kept++ {
		err = e.Usage(t.Context(), ofUser("u", kept))
	}
	kept--
	if !errors.Is(err, decide.ErrSpool) || !errors.Is(err, boltspool.ErrFull) || kept < 5 {
		t.Fatalf("after %d: %v", kept, err)
	}
	s = broker(t, dir, port)
	eventually(t, "there is room", func() bool { return e.Usage(t.Context(), ofUser("u", kept)) == nil })
	eventually(t, "the spool is empty", func() bool { return sp.Len() == 0 })
	inOrder(t, s.Brokers(), usage.Topic, kept+1)
}

func TestUnsendableEventIsSetAsideAloneAndNotTriedAgain(t *testing.T) {
	dir := t.TempDir()
	s := broker(t, dir, 0)
	port := portOf(t, s)
	bad, badLater, invalid := ofUser("u", 3), ofUser("u", 13), ofUser("u", 4)
	invalid.Model = strings.Repeat("x", 3<<20)
	refuse(s, bad)
	sp := spool(t, t.TempDir(), boltspool.Options{})
	e := emitter(t, s, Options{Spool: sp, Linger: 20 * time.Millisecond, Timeout: time.Second})
	var wg sync.WaitGroup
	for n := range 10 {
		wg.Go(func() {
			r := ofUser("u", n)
			if n == 4 {
				r = invalid
			}
			if err := e.Usage(t.Context(), r); errors.Is(err, decide.ErrUnsendable) != (n == 3 || n == 4) || (err != nil) != (n == 3 || n == 4) {
				t.Errorf("event %d: %.200v", n, err)
			}
		})
	}
	wg.Wait()
	if sp.Len() != 0 {
		t.Errorf("%d events in the queue", sp.Len())
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for n := 10; n < 20; n++ { // nobody has refused them yet
		if err := e.Usage(t.Context(), ofUser("u", n)); err != nil {
			t.Fatal(err)
		}
	}
	s = broker(t, dir, port)
	refuse(s, badLater)
	eventually(t, "the spool is empty", func() bool { return sp.Len() == 0 })
	byUser, _ := inOrder(t, s.Brokers(), usage.Topic, 17)
	last := int64(-1)
	for _, n := range byUser["u"] {
		if n == 3 || n == 4 || n == 13 {
			t.Errorf("event %d is in the log", n)
		}
		if n >= 10 && n < last {
			t.Errorf("order %v", byUser["u"])
		}
		last = n
	}
}

// A real broker whose topic takes small messages only.
func TestRealBrokerRefusesTheLargeEventOnly(t *testing.T) {
	k := realkafka.Shared(t)
	small := "small." + uuid.NewString()
	k.CreateTopic(t, small, 1, map[string]string{"max.message.bytes": "1200"})
	sp := spool(t, t.TempDir(), boltspool.Options{})
	e := New(Options{Brokers: []string{k.Addr}, Topic: small, Spool: sp, Timeout: 5 * time.Second})
	defer func() {
		if err := e.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	large := ofUser("u", 1)
	large.OrgID, large.RequestedModel, large.Instance = strings.Repeat("o", 120), strings.Repeat("m", 120), strings.Repeat("i", 120)
	for n, r := range []usage.Record{ofUser("u", 0), large, ofUser("u", 2)} {
		if err := e.Usage(t.Context(), r); errors.Is(err, decide.ErrUnsendable) != (n == 1) || (err != nil) != (n == 1) {
			t.Errorf("event %d: %v", n, err)
		}
	}
	// The same from the spool, in one batch.
	for n := 3; n < 6; n++ {
		r := ofUser("u", n)
		if n == 4 {
			r.OrgID, r.RequestedModel, r.Instance = large.OrgID, large.RequestedModel, large.Instance
		}
		msg, err := message(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := e.keep(t.Context(), "", msg, nil); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the spool is empty", func() bool { return sp.Len() == 0 })
	if byUser, _ := inOrder(t, []string{k.Addr}, small, 4); fmt.Sprint(byUser["u"]) != "[0 2 3 5]" {
		t.Error(byUser)
	}
}

func TestEventIsTheSameAfterTheSpool(t *testing.T) {
	m, err := message(record(1, "o1"))
	m.Value = append(m.Value[:len(m.Value)-1], `,"x":"\u003cü\u2028"}`...)
	if err != nil {
		t.Fatal(err)
	}
	b, err := freeze(m)
	if err != nil {
		t.Fatal(err)
	}
	back, err := thaw(b)
	if err != nil || fmt.Sprint(back) != fmt.Sprint(m) {
		t.Errorf("%v\n%v, %v", m, back, err)
	}
	for _, bad := range []string{"", "x", "{}", `{"key":"k"}`, `{"value":{}}`} {
		if _, err := thaw([]byte(bad)); err == nil {
			t.Errorf("%q is an event", bad)
		}
	}
}

// BenchmarkDrain measures how fast a spool empties into Kafka; its yardstick writes the same batches without a spool.
func BenchmarkDrain(b *testing.B) {
	s, err := kafka.Start(b.Context(), kafka.Options{Dir: b.TempDir(), NoSync: true, Topics: []kafka.Topic{{Name: usage.Topic, Partitions: usage.Partitions}}})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close(context.Background())
	msgs := make([]kafkago.Message, drainEvents)
	for i := range msgs {
		if msgs[i], err = message(ofUser(fmt.Sprintf("u%d", i%50), i)); err != nil {
			b.Fatal(err)
		}
	}
	rate := func(b *testing.B) { b.ReportMetric(float64(b.N*drainEvents)/b.Elapsed().Seconds(), "events/s") }
	b.Run("yardstick=no-spool", func(b *testing.B) {
		e := New(Options{Brokers: s.Brokers()})
		defer e.Close(context.Background())
		for b.Loop() {
			if err := e.drainer.WriteMessages(b.Context(), msgs...); err != nil {
				b.Fatal(err)
			}
		}
		rate(b)
	})
	b.Run("spool", func(b *testing.B) {
		dir := b.TempDir()
		sp := spool(b, dir, boltspool.Options{})
		var wg sync.WaitGroup
		for i := range b.N * drainEvents {
			event, err := freeze(msgs[i%drainEvents])
			if err != nil {
				b.Fatal(err)
			}
			wg.Go(func() { _ = sp.Append(context.Background(), event, "") })
		}
		wg.Wait()
		b.ResetTimer()
		e := New(Options{Brokers: s.Brokers(), Spool: sp})
		defer e.Close(context.Background())
		for sp.Len() > 0 {
			time.Sleep(time.Millisecond)
		}
		rate(b)
	})
}

// The records that are under way when Kafka goes away wait for as long as acknowledgements take, not for the longest wait.
func TestNoRecordWaitsLongForAKafkaThatWasQuick(t *testing.T) {
	s := broker(t, t.TempDir(), 0)
	sp := spool(t, t.TempDir(), boltspool.Options{})
	e := emitter(t, s, Options{Spool: sp, Timeout: time.Minute})
	for i := range 50 {
		if err := e.Usage(t.Context(), record(i, "")); err != nil {
			t.Fatal(err)
		}
	}
	defer hold(s)()
	began := time.Now()
	if err := e.Usage(t.Context(), record(50, "")); err != nil {
		t.Fatal(err)
	}
	if sp.Len() == 0 || time.Since(began) > 30*time.Second {
		t.Errorf("%d events in the spool after %s", sp.Len(), time.Since(began))
	}
}
