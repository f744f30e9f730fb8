package kafkausage

import (
	"context"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/tollgate-dev/tollgate/pkg/usage"
)

// batchMost is how many rejections are sent by one call.
const batchMost = 500

// Rejection queues one record. It never waits: when the queue is full the record is dropped and counted.
func (e *Emitter) Rejection(r usage.Record) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if !e.closed {
		select {
		case e.queue <- r:
			return
		default:
		}
	}
	e.m.sampled.Inc()
}

// Flush takes no more events, stops the drain of the spool and sends the queued rejections, until ctx ends; what is left of these then is
// dropped and counted. A second call does nothing.
func (e *Emitter) Flush(ctx context.Context) error {
	locked := within(ctx, func() {
		e.mu.Lock() // waits for the usage being sent
		defer e.mu.Unlock()
		if !e.closed {
			e.closed = true
			close(e.queue)
		}
	})
	if locked != nil {
		return locked
	}
	e.stopDrain()
	err := within(ctx, e.sender.Wait)
	e.giveUp()
	return err
}

// send sends what is queued until the queue is closed and empty. When ctx ends it drops what is left.
func (e *Emitter) send(ctx context.Context) {
	for first := range e.queue {
		batch := []usage.Record{first}
	fill:
		for len(batch) < batchMost {
			select {
			case r, open := <-e.queue:
				if !open {
					break fill
				}
				batch = append(batch, r)
			default:
				break fill
			}
		}
		e.sendBatch(ctx, e.encode(batch))
	}
}

// encode leaves out what breaks the contract: a fault of ours, which no retry mends.
func (e *Emitter) encode(batch []usage.Record) []kafka.Message {
	msgs := make([]kafka.Message, 0, len(batch))
	for _, r := range batch {
		msg, err := message(r)
		if err != nil {
			e.m.events.WithLabelValues(kindRejection, resultOf(err)).Inc()
			e.o.Log.Error("a rejection event can't be encoded", "event_id", r.EventID.String(), "err", err)
			continue
		}
		msgs = append(msgs, msg)
	}
	return msgs
}

const (
	retryMin = 100 * time.Millisecond
	retryMax = 2 * time.Second
)

// sendBatch tries until every message is durable or refused for good, or ctx ends.
func (e *Emitter) sendBatch(ctx context.Context, msgs []kafka.Message) {
	for wait := retryMin; len(msgs) > 0; wait = min(2*wait, retryMax) {
		msgs = e.try(msgs)
		if len(msgs) == 0 {
			return
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			e.m.sampled.Add(float64(len(msgs)))
			e.o.Log.Warn("rejection events were dropped", "events", len(msgs), "err", ctx.Err())
			return
		}
	}
}

// writeMost is longer than any batch's attempts take, so no call leaves its batch behind in the writer.
const writeMost = 20 * time.Second

func (e *Emitter) write(msgs ...kafka.Message) error {
	ctx, cancel := context.WithTimeout(context.Background(), writeMost)
	defer cancel()
	return e.rejections.WriteMessages(ctx, msgs...)
}

// try sends messages once and gives those that are worth another try.
func (e *Emitter) try(msgs []kafka.Message) (again []kafka.Message) {
	err := e.write(msgs...)
	for i, msg := range msgs {
		own := oneOf(err, i)
		if refused(own) && len(msgs) > 1 {
			own = oneOf(e.write(msg), 0)
		}
		e.m.events.WithLabelValues(kindRejection, resultOf(own)).Inc()
		switch {
		case own == nil:
		case refused(own):
			e.o.Log.Error("kafka refused a rejection event", "err", own)
		default:
			again = append(again, msg)
		}
	}
	if len(again) > 0 {
		e.o.Log.Warn("rejection events wait for kafka", "events", len(again), "err", err)
	}
	return again
}
