package kafkausage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tollgate-dev/tollgate/pkg/embedded/kafka"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/usage"
)

func broker(t *testing.T, dir string, port int) *kafka.Server {
	t.Helper()
	s, err := kafka.Start(t.Context(), kafka.Options{Dir: dir, Port: port, NoSync: true, Topics: []kafka.Topic{{Name: usage.Topic, Partitions: usage.Partitions}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close(context.Background()) })
	return s
}

func emitter(t *testing.T, s *kafka.Server, o Options) *Emitter {
	t.Helper()
	o.Brokers = s.Brokers()
	e := New(o)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := e.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return e
}

func record(n int, org string) usage.Record {
	s := subject.Subject{Kind: subject.User, ID: fmt.Sprintf("u%d", n)}
	id := uuid.NewSHA1(uuid.NameSpaceOID, []byte(strconv.Itoa(n)))
	return usage.Record{EventID: usage.EventID(s, id, usage.KindUsage), SchemaVersion: usage.SchemaVersion, UserID: s.ID, OrgID: org, Tier: "plus",
		RequestID: id, RequestedModel: "grok-2", Model: "grok-2", InputTokens: 1, Timestamp: usage.At(time.Now()), Outcome: usage.Completed,
		Reservation: usage.Held, Region: "eu", Instance: "test"}
}

func rejection(n int) usage.Record {
	r := record(n, "")
	r.EventID = usage.EventID(r.Subject(), r.RequestID, usage.KindRejection)
	r.InputTokens, r.Outcome, r.Reservation, r.WasRateLimited, r.Reason = 0, usage.Rejected, "", true, "rpm"
	return r
}

// events reads the whole log until it has n records, and gives how often each event is there.
func events(t *testing.T, s *kafka.Server, n int) map[uuid.UUID]int {
	t.Helper()
	c, err := kgo.NewClient(kgo.SeedBrokers(s.Brokers()...), kgo.ConsumeTopics(usage.Topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	seen, total := map[uuid.UUID]int{}, 0
	for total < n {
		f := c.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			t.Fatalf("%d events in the log, want %d", total, n)
		}
		f.EachRecord(func(r *kgo.Record) {
			rec, err := usage.Decode(r.Value)
			if err != nil {
				t.Fatal(err)
			}
			if string(r.Key) != rec.Key() || header(r, "ce_id") != rec.EventID.String() || header(r, "ce_source") != Source {
				t.Errorf("key %s, headers %v", r.Key, r.Headers)
			}
			seen[rec.EventID]++
			total++
		})
	}
	return seen
}

func header(r *kgo.Record, key string) string {
	for _, h := range r.Headers {
		if h.Key == key {
			return string(h.Value)
		}
	}
	return ""
}

// hold keeps every produce request unanswered until the returned function is called.
func hold(s *kafka.Server) (release func()) {
	gate := make(chan struct{})
	s.Cluster().ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		s.Cluster().KeepControl()
		s.Cluster().SleepControl(func() { <-gate })
		return nil, nil, false
	})
	return sync.OnceFunc(func() { close(gate) })
}

func TestUsageReturnsOnlyWhenKafkaHasAcknowledged(t *testing.T) {
	s := broker(t, t.TempDir(), 0)
	e := emitter(t, s, Options{})
	release := hold(s)
	defer release()
	done := make(chan error, 1)
	go func() { done <- e.Usage(t.Context(), record(1, "")) }()
	select {
	case err := <-done:
		t.Fatalf("answered before Kafka did: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	release()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if seen := events(t, s, 1); seen[record(1, "").EventID] != 1 {
		t.Errorf("the log holds %v", seen)
	}
}

func TestCallerThatHangsUpStopsNothing(t *testing.T) {
	s := broker(t, t.TempDir(), 0)
	e := emitter(t, s, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := e.Usage(ctx, record(1, "")); err != nil {
		t.Fatal(err)
	}
	events(t, s, 1)
}

func TestConcurrentCallersShareBatches(t *testing.T) {
	s := broker(t, t.TempDir(), 0)
	var produced atomic.Int64
	s.Cluster().ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		s.Cluster().KeepControl()
		produced.Add(1)
		return nil, nil, false
	})
	e := emitter(t, s, Options{Linger: 20 * time.Millisecond})
	var wg sync.WaitGroup
	for i := range 300 {
		wg.Go(func() {
			if err := e.Usage(t.Context(), record(i, "o1")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := produced.Load(); n > 100 {
		t.Errorf("%d requests for 300 records", n)
	}
	for id, n := range events(t, s, 300) {
		if n != 1 {
			t.Errorf("%s is there %d times", id, n)
		}
	}
}

// refuse has the broker refuse every batch that holds one of the records, as a real one does.
func refuse(s *kafka.Server, bad ...usage.Record) {
	refusal := func(req *kmsg.ProduceRequest) kmsg.Response {
		resp := req.ResponseKind().(*kmsg.ProduceResponse)
		for _, topic := range req.Topics {
			rt := kmsg.NewProduceResponseTopic()
			rt.Topic, rt.TopicID = topic.Topic, topic.TopicID
			for _, p := range topic.Partitions {
				rp := kmsg.NewProduceResponseTopicPartition()
				rp.Partition, rp.ErrorCode = p.Partition, kerr.MessageTooLarge.Code
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp
	}
	s.Cluster().ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
		s.Cluster().KeepControl()
		req := r.(*kmsg.ProduceRequest)
		for _, topic := range req.Topics {
			for _, p := range topic.Partitions {
				for _, b := range bad {
					if bytes.Contains(p.Records, []byte(b.EventID.String())) {
						return refusal(req), nil, true
					}
				}
			}
		}
		return nil, nil, false
	})
}

// A broker refuses a whole batch for one bad record.
func TestOneBadRecordFailsAlone(t *testing.T) {
	s := broker(t, t.TempDir(), 0)
	bad := record(7, "o1")
	refuse(s, bad)
	e := emitter(t, s, Options{Linger: 50 * time.Millisecond})
	var wg sync.WaitGroup
	for i := range 30 {
		wg.Go(func() {
			if err := e.Usage(t.Context(), record(i, "o1")); (err != nil) != (i == 7) {
				t.Errorf("record %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if seen := events(t, s, 29); seen[bad.EventID] != 0 {
		t.Error("the bad record is in the log")
	}
}

func TestTooManyWaitingAreRefusedAtOnce(t *testing.T) {
	s := broker(t, t.TempDir(), 0)
	e := emitter(t, s, Options{MaxPending: 3, Timeout: 200 * time.Millisecond})
	release := hold(s)
	defer release()
	for i := range 3 { // their callers give up; the records stay in the writer
		if err := e.Usage(t.Context(), record(i, "")); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
	}
	if err := e.Usage(t.Context(), record(3, "")); !errors.Is(err, ErrBusy) {
		t.Fatal(err)
	}
	release()
	events(t, s, 3)
	for deadline := time.Now().Add(10 * time.Second); e.pending.Load() != 0; <-time.After(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d records still count as waiting", e.pending.Load())
		}
	}
	if err := e.Usage(t.Context(), record(3, "")); err != nil {
		t.Fatal(err)
	}
}

func TestUsageSucceedsAfterTheBrokerIsBack(t *testing.T) {
	dir := t.TempDir()
	s := broker(t, dir, 0)
	_, p, _ := net.SplitHostPort(s.Addr)
	port, _ := strconv.Atoi(p)
	e := emitter(t, s, Options{Timeout: 2 * time.Second})
	if err := e.Usage(t.Context(), record(1, "")); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if err := e.Usage(t.Context(), record(2, "")); err == nil {
		t.Fatal("acknowledged by nobody")
	}
	if d := time.Since(start); d > 3*time.Second {
		t.Errorf("took %s to say so", d)
	}
	s = broker(t, dir, port)
	var err error
	for deadline := time.Now().Add(15 * time.Second); time.Now().Before(deadline); {
		if err = e.Usage(t.Context(), record(2, "")); err == nil {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	if seen := events(t, s, 2); seen[record(1, "").EventID] != 1 || seen[record(2, "").EventID] < 1 || len(seen) != 2 {
		t.Errorf("the log holds %v", seen)
	}
}

func TestQueuedRejectionsAreSentAtTheStop(t *testing.T) {
	s := broker(t, t.TempDir(), 0)
	e := emitter(t, s, Options{})
	for i := range 2000 {
		e.Rejection(rejection(i))
	}
	if err := e.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if seen := events(t, s, 2000); len(seen) != 2000 {
		t.Errorf("%d distinct rejections", len(seen))
	}
	if err := e.Usage(t.Context(), record(1, "")); !errors.Is(err, ErrClosed) {
		t.Errorf("usage after the stop: %v", err)
	}
}

func TestFullQueueDropsRejectionsButNeverUsage(t *testing.T) {
	s := broker(t, t.TempDir(), 0)
	release := hold(s)
	defer release()
	e := emitter(t, s, Options{Queue: 10, Registry: prometheus.NewRegistry()})
	for i := range 3000 {
		e.Rejection(rejection(i))
	}
	dropped := testutil.ToFloat64(e.m.sampled)
	if dropped == 0 || dropped >= 3000 {
		t.Errorf("%v of 3000 were dropped", dropped)
	}
	release()
	if err := e.Usage(t.Context(), record(1, "")); err != nil {
		t.Fatal(err)
	}
	if seen := events(t, s, 3000-int(dropped)+1); seen[record(1, "").EventID] != 1 {
		t.Error("the usage is missing")
	}
}

func TestStopEndsInTimeWhileKafkaIsAway(t *testing.T) {
	s := broker(t, t.TempDir(), 0)
	e := New(Options{Brokers: s.Brokers()})
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		e.Rejection(rejection(i))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	start := time.Now()
	if err := e.Close(ctx); err == nil {
		t.Error("rejections were lost without a word")
	}
	if d := time.Since(start); d > 2*time.Second {
		t.Errorf("the stop took %s", d)
	}
}
