package kafkausage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/segmentio/kafka-go"

	"github.com/tollgate-dev/tollgate/pkg/usage"
)

// Source is the CloudEvents source of every event sent here.
const Source = "/tollgate/enforcement"

// ErrBusy says that too many records wait for Kafka already. ErrClosed says that the emitter is stopping.
var (
	ErrBusy   = errors.New("too many events are waiting for kafka")
	ErrClosed = errors.New("the emitter is closed")
)

// Options are an Emitter's settings. Zero values take the defaults.
type Options struct {
	Brokers    []string
	Topic      string        // usage.Topic
	Timeout    time.Duration // longest wait for Kafka: 5 s; if there is a spool 2 s, and as a rule much less (patience)
	Spool      Spool         // none if nil
	Linger     time.Duration // how long a batch waits for more records: 5 ms
	MaxPending int           // usage records that wait for Kafka: 20,000
	Queue      int           // rejections that wait: 65,536
	Registry   prometheus.Registerer
	Log        *slog.Logger
}

// Emitter sends events. It is safe for concurrent use. Close it after the last call.
type Emitter struct {
	o          Options
	m          metrics
	transport  *kafka.Transport
	usage      *kafka.Writer
	alone      *kafka.Writer // one record a batch
	rejections *kafka.Writer
	drainer    *kafka.Writer // of the spool

	spooling atomic.Bool   // said in the log
	wake     chan struct{} // the spool has events
	handing  sync.Mutex
	handed   chan struct{} // closed when the handover ends; nil while there is none

	patience patience
	pending  atomic.Int64 // usage records in the writers, also those whose caller has given up
	queue    chan usage.Record

	mu     sync.RWMutex // held for reading by every call, for writing by the stop
	closed bool
	sender sync.WaitGroup
	giveUp context.CancelFunc // ends the sender's retries

	draining  sync.WaitGroup
	stopDrain context.CancelFunc
}

// New makes an Emitter and starts its sender of rejections, and the drain of what its spool holds. It does not connect: a Kafka that is
// away shows at the first event.
func New(o Options) *Emitter {
	if o.Topic == "" {
		o.Topic = usage.Topic
	}
	if o.Timeout == 0 && o.Spool != nil {
		o.Timeout = 2 * time.Second
	}
	if o.Timeout == 0 {
		o.Timeout = 5 * time.Second
	}
	if o.Linger == 0 {
		o.Linger = 5 * time.Millisecond // as Kafka's own clients since 4.0 (KIP-1030); 2 ms took twice the broker's time at 500 records a second of one key
	}
	if o.MaxPending == 0 {
		o.MaxPending = 20_000
	}
	if o.Queue == 0 {
		o.Queue = 65_536
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	e := &Emitter{o: o, queue: make(chan usage.Record, o.Queue), wake: make(chan struct{}, 1), patience: patience{most: o.Timeout}}
	e.transport = &kafka.Transport{ClientID: "tollgate-enforcement", IdleTimeout: 30 * time.Second, MetadataTTL: 5 * time.Second,
		Dial: (&net.Dialer{Timeout: 2 * time.Second, KeepAlive: 30 * time.Second}).DialContext}
	e.usage, e.alone, e.rejections, e.drainer = e.writer(100), e.writer(1), e.writer(100), e.writer(drainEvents)
	e.drainer.MaxAttempts = 1 // the drain itself tries again
	for _, w := range []*kafka.Writer{e.usage, e.alone} {
		w.Balancer = counted{kafka.Balancer(&kafka.Hash{}), &e.pending}
		w.Completion = func(msgs []kafka.Message, _ error) { e.pending.Add(int64(-len(msgs))) }
	}
	e.m = newMetrics(o.Registry, e)
	ctx, cancel := context.WithCancel(context.Background())
	e.giveUp = cancel
	e.sender.Go(func() { e.send(ctx) })
	draining, stop := context.WithCancel(context.Background())
	e.stopDrain = stop
	if o.Spool != nil {
		e.draining.Go(func() { e.drain(draining) })
	}
	return e
}

// writer makes a writer whose batches end, well or not, within about ten seconds, for nothing can cancel one.
func (e *Emitter) writer(batch int) *kafka.Writer {
	return &kafka.Writer{
		Addr: kafka.TCP(e.o.Brokers...), Topic: e.o.Topic, Transport: e.transport,
		Balancer: &kafka.Hash{}, RequiredAcks: kafka.RequireAll,
		BatchSize: batch, BatchBytes: batchBytes, BatchTimeout: e.o.Linger, // the default of 1 s would be added to every record
		MaxAttempts: 3, WriteBackoffMin: 50 * time.Millisecond, WriteBackoffMax: 500 * time.Millisecond,
		WriteTimeout: 3 * time.Second, ReadTimeout: 3 * time.Second,
		ErrorLogger: kafka.LoggerFunc(func(format string, args ...any) {
			e.o.Log.Debug("kafka writer", "detail", fmt.Sprintf(format, args...))
		}),
	}
}

// counted counts a message when it is given to a partition's batch: from then on it leaves the writer only through Completion, even if
// its caller gives up. (A batch that is never full and a call of one message: nothing can fail in between.)
type counted struct {
	kafka.Balancer
	pending *atomic.Int64
}

func (c counted) Balance(m kafka.Message, partitions ...int) int {
	c.pending.Add(1)
	return c.Balancer.Balance(m, partitions...)
}

// Usage sends one record and returns when it is durable: when Kafka has it, or the spool. The caller hanging up doesn't stop it. After an
// error the record may or may not become durable: send it again, unless it is decide.ErrUnsendable.
func (e *Emitter) Usage(ctx context.Context, r usage.Record) error {
	start := time.Now()
	result, err := e.emit(context.WithoutCancel(ctx), r)
	e.m.seconds.Observe(time.Since(start).Seconds())
	e.m.events.WithLabelValues(kindUsage, result).Inc()
	if err != nil {
		return fmt.Errorf("emit %s: %w", r.EventID, err)
	}
	return nil
}

func (e *Emitter) emit(ctx context.Context, r usage.Record) (result string, err error) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if e.closed {
		return resultFailed, ErrClosed
	}
	msg, err := message(r)
	switch {
	case e.o.Spool == nil && err == nil:
		err = e.direct(ctx, msg, e.o.Timeout)
		return resultOf(err), err
	case e.o.Spool == nil:
		return resultFailed, err
	case err != nil:
		return e.setAsideRecord(ctx, r, err)
	case e.behindSpool(ctx):
		return e.keep(ctx, r.EventID.String(), msg, nil)
	}
	began := time.Now()
	err = e.direct(ctx, msg, e.patience.wait())
	if err == nil || errors.Is(err, context.DeadlineExceeded) {
		e.patience.took(time.Since(began))
	}
	switch {
	case err == nil:
		return resultAcknowledged, nil
	case refused(err):
		event, e2 := freeze(msg)
		if e2 != nil {
			return resultFailed, errors.Join(err, e2)
		}
		return e.setAside(ctx, r.EventID.String(), event, err)
	}
	return e.keep(ctx, r.EventID.String(), msg, err)
}

// direct sends one message to Kafka, and gives up after a wait; it may arrive all the same.
func (e *Emitter) direct(ctx context.Context, msg kafka.Message, wait time.Duration) error {
	if e.pending.Load() >= int64(e.o.MaxPending) {
		return ErrBusy
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	err := oneOf(e.usage.WriteMessages(ctx, msg), 0)
	if refused(err) {
		err = oneOf(e.alone.WriteMessages(ctx, msg), 0)
	}
	return err
}

// oneOf gives the error of the i-th message of a write.
func oneOf(err error, i int) error {
	var each kafka.WriteErrors
	if errors.As(err, &each) && i < len(each) {
		return each[i]
	}
	return err
}

// refused tells a lasting no to the record itself from a failure that another try may mend.
func refused(err error) bool {
	var tooLarge kafka.MessageTooLargeError
	if errors.As(err, &tooLarge) {
		return true
	}
	for _, code := range []kafka.Error{kafka.MessageSizeTooLarge, kafka.RecordListTooLarge, kafka.InvalidRecord, kafka.InvalidTimestamp, kafka.UnsupportedForMessageFormat} {
		if errors.Is(err, code) {
			return true
		}
	}
	return false
}

// message never shares memory with another one.
func message(r usage.Record) (kafka.Message, error) {
	m, err := usage.Encode(r, Source)
	if err != nil {
		return kafka.Message{}, err
	}
	msg := kafka.Message{Key: m.Key, Value: m.Value, Headers: make([]kafka.Header, len(m.Headers))}
	for i, h := range m.Headers {
		msg.Headers[i] = kafka.Header{Key: h.Key, Value: []byte(h.Value)}
	}
	return msg, nil
}

// Close waits for the usage being sent, then for the batches whose callers have given up, until ctx ends. Call Flush before. The spool
// stays open and keeps what it holds; close it afterwards.
func (e *Emitter) Close(ctx context.Context) error {
	err := errors.Join(e.Flush(ctx), within(ctx, e.draining.Wait), within(ctx, func() {
		// No WriteMessages runs any more: one that overlaps Close may hang it (kafka-go #1307).
		_ = errors.Join(e.usage.Close(), e.alone.Close(), e.rejections.Close(), e.drainer.Close()) // they are always nil
		e.transport.CloseIdleConnections()
	}))
	if err != nil {
		return fmt.Errorf("close the kafka emitter: %w", err)
	}
	return nil
}

// within waits for f until ctx ends; f then goes on alone, which only a stop may do.
func within(ctx context.Context, f func()) error {
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
