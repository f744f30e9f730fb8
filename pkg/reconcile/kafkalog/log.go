// Package kafkalog sums up the EVENT stage's log: every usable message of the usage topic, each event once.
//
// It reads with no group and commits nothing. Repeats of an event are known by event_id; which one counts is the ledger's rule
// (migrations/clickhouse/00003): what is no guess comes before expired, and then the one first by offset, then partition. It holds about 100 bytes of memory for each distinct event.
package kafkalog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/google/uuid"
	"github.com/segmentio/kafka-go"

	"github.com/tollgate-dev/tollgate/pkg/reconcile"
	"github.com/tollgate-dev/tollgate/pkg/usage"
)

const (
	maxFetch = 4 << 20          // bytes of one fetch
	stall    = 20 * time.Second // how long a partition may give nothing though its end is not reached
)

// Log is one topic. Its fields may be read after Totals.
type Log struct {
	Brokers  []string
	Topic    string                  // usage.Topic if empty
	Progress func(done, total int64) // messages; may be nil

	Messages int64         // read by the last Totals, repeats included
	Unusable int64         // of these, what the consumer puts aside
	Ends     map[int]int64 // next offset of each partition, at the moment Totals began
}

var _ reconcile.Side = (*Log)(nil)

// first is the event as the first of its messages tells it, guesses last.
type first struct {
	offset                int64
	partition             int
	input, output, cached int64
	outcome               usage.Outcome
	rejected              bool
}

// Totals implements reconcile.Side. It reads from the first offset that the log still has up to the end at the moment of the call.
func (l *Log) Totals(ctx context.Context) (reconcile.Totals, error) {
	topic := l.Topic
	if topic == "" {
		topic = usage.Topic
	}
	transport := &kafka.Transport{}
	defer transport.CloseIdleConnections()
	client := &kafka.Client{Addr: kafka.TCP(l.Brokers...), Timeout: 10 * time.Second, Transport: transport}
	ends, err := offsets(ctx, client, topic)
	if err != nil {
		return reconcile.Totals{}, err
	}
	l.Messages, l.Unusable, l.Ends = 0, 0, map[int]int64{}
	var total int64
	for _, p := range ends {
		l.Ends[p.Partition] = p.LastOffset
		total += p.LastOffset - p.FirstOffset
	}
	events := map[uuid.UUID]first{}
	for _, p := range ends {
		if err := l.read(ctx, client, topic, p, total, events); err != nil {
			return reconcile.Totals{}, err
		}
	}
	var t reconcile.Totals
	for id, e := range events {
		t.Add(usage.Record{EventID: id, InputTokens: e.input, OutputTokens: e.output, CachedInputTokens: e.cached, Outcome: e.outcome, WasRateLimited: e.rejected})
	}
	return t, nil
}

// offsets gives the first and the last offset of each partition.
func offsets(ctx context.Context, client *kafka.Client, topic string) ([]kafka.PartitionOffsets, error) {
	meta, err := client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{topic}})
	if err != nil {
		return nil, fmt.Errorf("ask Kafka for topic %s: %w", topic, err)
	}
	var ask []kafka.OffsetRequest
	for _, t := range meta.Topics {
		if t.Error != nil {
			return nil, fmt.Errorf("topic %s: %w", topic, t.Error)
		}
		for _, p := range t.Partitions {
			ask = append(ask, kafka.FirstOffsetOf(p.ID), kafka.LastOffsetOf(p.ID))
		}
	}
	if len(ask) == 0 {
		return nil, fmt.Errorf("topic %s has no partitions", topic)
	}
	r, err := client.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{topic: ask}})
	if err != nil {
		return nil, fmt.Errorf("ask for the ends of %s: %w", topic, err)
	}
	for _, p := range r.Topics[topic] {
		if p.Error != nil {
			return nil, fmt.Errorf("end of partition %d of %s: %w", p.Partition, topic, p.Error)
		}
	}
	return r.Topics[topic], nil
}

// read adds one partition to events.
func (l *Log) read(ctx context.Context, client *kafka.Client, topic string, p kafka.PartitionOffsets, total int64, events map[uuid.UUID]first) error {
	progressed := time.Now()
	for next := p.FirstOffset; next < p.LastOffset; {
		// What lies below the end is there already, so no fetch has to wait.
		f, err := client.Fetch(ctx, &kafka.FetchRequest{Topic: topic, Partition: p.Partition, Offset: next, MinBytes: 1, MaxBytes: maxFetch, MaxWait: time.Second})
		if err == nil {
			err = f.Error
		}
		before := next
		if err == nil {
			next, err = l.addAll(f.Records, p.Partition, next, p.LastOffset, events)
		}
		if err != nil {
			return fmt.Errorf("read partition %d of %s at offset %d: %w", p.Partition, topic, next, err)
		}
		switch {
		case next > before:
			progressed = time.Now()
		case time.Since(progressed) > stall:
			return fmt.Errorf("read partition %d of %s: nothing at offset %d for %s, though it ends at %d", p.Partition, topic, next, stall, p.LastOffset)
		}
		if l.Progress != nil {
			l.Progress(l.Messages, total)
		}
	}
	return nil
}

// addAll adds the records from offset next up to end, and gives the offset behind the last.
func (l *Log) addAll(records kafka.RecordReader, partition int, next, end int64, events map[uuid.UUID]first) (int64, error) {
	for {
		r, err := records.ReadRecord()
		if errors.Is(err, io.EOF) {
			return next, nil
		}
		if err != nil {
			return next, err
		}
		var value []byte
		if r.Value != nil {
			if value, err = io.ReadAll(r.Value); err != nil {
				return next, err
			}
		}
		if r.Offset < next || r.Offset >= end { // a fetch gives whole batches
			continue
		}
		next = r.Offset + 1
		l.add(kafka.Message{Partition: partition, Offset: r.Offset, Value: value}, events)
	}
}

func (l *Log) add(m kafka.Message, events map[uuid.UUID]first) {
	l.Messages++
	r, err := usage.Decode(m.Value)
	if err != nil {
		l.Unusable++
		return
	}
	found := first{m.Offset, m.Partition, r.InputTokens, r.OutputTokens, r.CachedInputTokens, r.Outcome, r.WasRateLimited}
	if e, ok := events[r.EventID]; ok && e.stands(found) {
		return
	}
	events[r.EventID] = found
}

// stands tells whether e counts, of two messages of one event.
func (e first) stands(against first) bool {
	if guess, other := e.outcome == usage.Expired, against.outcome == usage.Expired; guess != other {
		return other
	}
	return cmp.Or(cmp.Compare(e.offset, against.offset), cmp.Compare(e.partition, against.partition)) < 0
}
