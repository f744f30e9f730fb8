package kafkasource

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/tollgate-dev/tollgate/services/consumer/internal/consume"
)

const (
	wholeQueue   = 100              // messages fetched ahead of each partition
	wholeRetry   = time.Second      // after an error of a partition
	newPartition = 30 * time.Second // until a later partition is noticed
)

// Whole reads all of a topic from its beginning, and then what comes. It is in no group and commits nothing: each Whole gives every message.
type Whole struct {
	source *Source
	log    *slog.Logger
	out    chan consume.Message
	stop   context.CancelFunc
	done   sync.WaitGroup
}

// OpenWhole waits for the topic as Open does, and begins to read. Group and Queue are not used.
func OpenWhole(ctx context.Context, cfg Config, log *slog.Logger) (*Whole, error) {
	s := newSource(cfg)
	ids, err := s.await(ctx, log)
	if err != nil {
		return nil, err
	}
	read, stop := context.WithCancel(context.WithoutCancel(ctx))
	w := &Whole{source: s, log: log, out: make(chan consume.Message), stop: stop}
	w.done.Go(func() { w.watch(read, ids) })
	return w, nil
}

// watch starts a reader for each partition, and for those that come later.
func (w *Whole) watch(ctx context.Context, ids []int) {
	started := map[int]bool{}
	for {
		for _, id := range ids {
			if !started[id] {
				started[id] = true
				w.done.Go(func() { w.read(ctx, id) })
			}
		}
		select {
		case <-time.After(newPartition):
		case <-ctx.Done():
			return
		}
		var err error
		if ids, err = w.source.partitions(ctx); err != nil {
			w.log.Debug("partitions unknown", "topic", w.source.cfg.Topic, "err", err)
		}
	}
}

// read hands out one partition.
func (w *Whole) read(ctx context.Context, partition int) {
	cfg := w.source.cfg
	r := kafka.NewReader(kafka.ReaderConfig{Brokers: cfg.Brokers, Topic: cfg.Topic, Partition: partition,
		Dialer:        &kafka.Dialer{Timeout: askTimeout, DualStack: true, ClientID: cfg.ClientID},
		QueueCapacity: wholeQueue, MinBytes: 1, MaxBytes: maxFetch, MaxWait: time.Second, ReadLagInterval: -1,
		OffsetOutOfRangeError: true, // else the reader of a topic that is made anew waits until that is as long as the old one
		ErrorLogger:           kafka.LoggerFunc(func(format string, args ...any) { w.log.Debug("kafka-go", "says", fmt.Sprintf(format, args...)) }),
	})
	defer func() {
		if err := r.Close(); err != nil {
			w.log.Debug("close a reader", "topic", cfg.Topic, "partition", partition, "err", err)
		}
	}()
	for ctx.Err() == nil {
		m, err := r.FetchMessage(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, kafka.OffsetOutOfRange):
			err = r.SetOffset(kafka.FirstOffset)
			w.log.Warn("the topic does not hold what comes next: reading it from its beginning", "topic", cfg.Topic, "partition", partition, "err", err)
		case err == nil:
			select {
			case w.out <- message(m):
			case <-ctx.Done():
			}
			continue
		default:
			w.log.Debug("a partition can't be read; trying again", "topic", cfg.Topic, "partition", partition, "err", err)
		}
		select {
		case <-time.After(wholeRetry):
		case <-ctx.Done():
		}
	}
}

// Fetch waits for the next message of any partition; those of one come in order. It ends with ctx.
func (w *Whole) Fetch(ctx context.Context) (consume.Message, error) {
	select {
	case m := <-w.out:
		return m, nil
	case <-ctx.Done():
		return consume.Message{}, fmt.Errorf("fetch from %s: %w", w.source.cfg.Topic, ctx.Err())
	}
}

// Close ends all readers.
func (w *Whole) Close() error {
	w.stop()
	w.done.Wait()
	w.source.hangUp()
	return nil
}
