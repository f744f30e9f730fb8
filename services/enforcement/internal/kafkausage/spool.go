package kafkausage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/tollgate-dev/tollgate/pkg/usage"
	"github.com/tollgate-dev/tollgate/services/enforcement/internal/decide"
)

// Spool keeps usage events on this machine while Kafka is away, in order. A nil error of Append and Settle means that it is durable.
type Spool interface {
	// Append puts an event at the end of the queue, or in quarantine if there is a refusal.
	Append(ctx context.Context, event []byte, refusal string) error
	// Oldest gives the head of the queue, at least one event if there is one, and their numbers.
	Oldest(most, limit int) (seqs []uint64, events [][]byte, err error)
	// Settle takes out what was sent, and sets aside what was refused, with the reason.
	Settle(ctx context.Context, sent []uint64, refused map[uint64]string) error
	// Len counts the queue, with what is just being written.
	Len() int
}

const (
	spoolMost = 5 * time.Second // longest wait for the disk
	awayAfter = 5 * time.Second // that the drain fails: Kafka is not slow, it is away
	// What is drained by one call makes at most one batch for each partition, so that none can fail before one behind it arrives.
	drainEvents = 500
	drainBytes  = 512 << 10
	batchBytes  = 1 << 20 // a larger message is refused by the client, as it is by a broker's default
)

// spooled is an event in the spool: its message, as it would have been sent.
type spooled struct {
	Key     string          `json:"key"`
	Headers [][2]string     `json:"headers"`
	Value   json.RawMessage `json:"value"`
}

func freeze(m kafka.Message) ([]byte, error) {
	s := spooled{Key: string(m.Key), Value: m.Value, Headers: make([][2]string, len(m.Headers))}
	for i, h := range m.Headers {
		s.Headers[i] = [2]string{h.Key, string(h.Value)}
	}
	b, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode for the spool: %w", err)
	}
	return b, nil
}

func thaw(b []byte) (kafka.Message, error) {
	var s spooled
	if err := json.Unmarshal(b, &s); err != nil {
		return kafka.Message{}, fmt.Errorf("decode from the spool: %w", err)
	}
	if s.Key == "" || len(s.Headers) == 0 {
		return kafka.Message{}, errors.New("decode from the spool: no key or no headers")
	}
	m := kafka.Message{Key: []byte(s.Key), Value: s.Value, Headers: make([]kafka.Header, len(s.Headers))}
	for i, h := range s.Headers {
		m.Headers[i] = kafka.Header{Key: h[0], Value: []byte(h[1])}
	}
	return m, nil
}

// keep puts an event into the spool. cause is why Kafka doesn't have it, nil if it wasn't asked.
func (e *Emitter) keep(ctx context.Context, id string, msg kafka.Message, cause error) (string, error) {
	event, err := freeze(msg)
	if err != nil {
		return resultFailed, errors.Join(cause, err)
	}
	ctx, cancel := context.WithTimeout(ctx, spoolMost)
	defer cancel()
	if err := e.o.Spool.Append(ctx, event, ""); err != nil {
		return resultFailed, errors.Join(cause, fmt.Errorf("%w: %w", decide.ErrSpool, err))
	}
	// One slow fsync of a broker is enough for it. Whoever found events in the spool leaves it to the one that put the first there to say why.
	if cause != nil && e.spooling.CompareAndSwap(false, true) {
		e.o.Log.Info("kafka does not acknowledge in time; usage events go to the spool until it does", "event_id", id, "err", cause)
	}
	e.wakeDrain()
	return resultSpooled, nil
}

// setAside puts an event into quarantine that no retry helps.
func (e *Emitter) setAside(ctx context.Context, id string, event []byte, refusal error) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, spoolMost)
	defer cancel()
	if err := e.o.Spool.Append(ctx, event, refusal.Error()); err != nil {
		return resultFailed, errors.Join(refusal, fmt.Errorf("%w: %w", decide.ErrSpool, err))
	}
	e.o.Log.Error("a usage event can't be sent; it is in the spool's quarantine", "event_id", id, "err", refusal)
	return resultQuarantined, fmt.Errorf("%w: %w", decide.ErrUnsendable, refusal)
}

// setAsideRecord does so with a record that breaks the contract of its event.
func (e *Emitter) setAsideRecord(ctx context.Context, r usage.Record, refusal error) (string, error) {
	value, err := json.Marshal(r)
	if err != nil {
		return resultFailed, errors.Join(refusal, err)
	}
	event, err := json.Marshal(spooled{Value: value})
	if err != nil {
		return resultFailed, errors.Join(refusal, err)
	}
	return e.setAside(ctx, r.EventID.String(), event, refusal)
}

func (e *Emitter) wakeDrain() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// drain sends what is in the spool, the oldest first, until ctx ends.
func (e *Emitter) drain(ctx context.Context) {
	pause := retryMin
	var failing time.Time // since when; zero while it works
	var told bool
	for ctx.Err() == nil {
		n, err := e.drainSome(ctx)
		switch {
		case err == nil:
			failing, told = time.Time{}, false
		case failing.IsZero():
			failing = time.Now()
		case !told && time.Since(failing) > awayAfter:
			told = true
			e.o.Log.Warn("kafka is away; usage events wait in the spool", "events", e.o.Spool.Len(), "err", err)
		}
		left := e.o.Spool.Len()
		e.handOver(left, err == nil)
		if n > 0 {
			pause = retryMin
		}
		switch {
		case err != nil:
			e.o.Log.Debug("the spool waits for kafka", "events", left, "err", err)
			await(ctx, nil, pause) // new events change nothing
			pause = min(2*pause, retryMax)
		case n > 0:
		case left > 0: // just being written
			await(ctx, e.wake, retryMin)
		default:
			await(ctx, e.wake, retryMax)
		}
	}
}

func await(ctx context.Context, wake <-chan struct{}, most time.Duration) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-wake:
	case <-timer.C:
	}
}

// handOver leads from the spool back to Kafka. Under load the spool would never be empty: so once the drain succeeds and little is left, new
// events wait for that little, and then go to Kafka.
func (e *Emitter) handOver(left int, well bool) {
	e.handing.Lock()
	defer e.handing.Unlock()
	switch {
	case well && left > 0 && left <= drainEvents && e.handed == nil:
		e.handed = make(chan struct{})
	case e.handed != nil && (!well || left == 0):
		close(e.handed)
		e.handed = nil
	}
	if well && left == 0 && e.spooling.CompareAndSwap(true, false) {
		e.o.Log.Info("the spool is drained; usage events go to kafka again")
	}
}

// behindSpool says whether an event has to go behind those in the spool. It may wait for these to be sent.
func (e *Emitter) behindSpool(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, e.patience.wait())
	defer cancel()
	for e.o.Spool.Len() > 0 {
		e.handing.Lock()
		handed := e.handed
		e.handing.Unlock()
		if handed == nil {
			return e.o.Spool.Len() > 0
		}
		select {
		case <-handed:
		case <-ctx.Done():
			return true
		}
	}
	return false
}

// drainSome sends the oldest events once and takes out those that Kafka has acknowledged; it says how many have left the queue. An error
// says that some have not.
func (e *Emitter) drainSome(ctx context.Context) (int, error) {
	seqs, events, err := e.o.Spool.Oldest(drainEvents, drainBytes)
	if err != nil || len(seqs) == 0 {
		return 0, err
	}
	refusals := map[uint64]string{}
	msgs, of := make([]kafka.Message, 0, len(seqs)), make([]uint64, 0, len(seqs))
	for i, b := range events {
		msg, err := thaw(b)
		if err != nil {
			refusals[seqs[i]] = err.Error()
			continue
		}
		msgs, of = append(msgs, msg), append(of, seqs[i])
	}
	began := time.Now()
	sent, failed := e.sendInOrder(ctx, msgs, of, refusals)
	if failed == nil {
		e.patience.took(time.Since(began)) // else a Kafka that has become slow while nobody waited for it would not be waited for
	}
	for seq, reason := range refusals {
		e.o.Log.Error("a spooled usage event can't be sent; it is in the spool's quarantine", "event_id", idOf(seq, msgs, of), "err", reason)
	}
	if err := e.settle(ctx, sent, refusals); err != nil {
		return 0, err
	}
	return len(sent) + len(refusals), failed
}

func idOf(seq uint64, msgs []kafka.Message, of []uint64) string {
	for i, s := range of {
		if s == seq {
			for _, h := range msgs[i].Headers {
				if h.Key == "ce_id" {
					return string(h.Value)
				}
			}
		}
	}
	return "unknown"
}

// sendInOrder sends messages, and those of a refused batch alone. Once one fails, none of a later place in its batch is sent.
func (e *Emitter) sendInOrder(ctx context.Context, msgs []kafka.Message, of []uint64, refusals map[uint64]string) (sent []uint64, failed error) {
	if len(msgs) == 0 {
		return nil, nil
	}
	err := e.drainer.WriteMessages(ctx, msgs...)
	alone := true
	for i := range msgs {
		own := oneOf(err, i)
		if refused(own) && len(msgs) > 1 {
			if !alone {
				continue
			}
			own = oneOf(e.drainer.WriteMessages(ctx, msgs[i]), 0)
			alone = own == nil || refused(own)
		}
		switch {
		case own == nil:
			sent = append(sent, of[i])
		case refused(own):
			refusals[of[i]] = own.Error()
		default:
			failed = own
		}
	}
	return sent, failed
}

// settle tries until the spool has noted what has become of its events: else they would go out again.
func (e *Emitter) settle(ctx context.Context, sent []uint64, refusals map[uint64]string) error {
	if len(sent)+len(refusals) == 0 {
		return nil
	}
	for pause := retryMin; ; pause = min(2*pause, retryMax) {
		// The stop doesn't interrupt this: it is the disk, and it is short.
		write, cancel := context.WithTimeout(context.WithoutCancel(ctx), spoolMost)
		err := e.o.Spool.Settle(write, sent, refusals)
		cancel()
		if err == nil {
			return nil
		}
		e.o.Log.Error("events that kafka has could not be taken out of the spool; trying again", "events", len(sent), "err", err)
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
	}
}
