// Package kafkalog reads the EVENT stage's log for a comparison: the usage topic, its dead letters and the consumer group's offsets.
//
// It reads with no group and commits nothing.
package kafkalog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/segmentio/kafka-go"
	"golang.org/x/sync/errgroup"

	"github.com/tollgate-dev/tollgate/pkg/reconcile"
	"github.com/tollgate-dev/tollgate/pkg/usage"
)

const (
	maxFetch = 4 << 20          // bytes of one fetch
	stall    = 20 * time.Second // how long a partition may give nothing though its end is not reached
	timeout  = 10 * time.Second // of one request

	// sinceMargin is by how much a message's own time may lie before its event's timestamp: clocks differ.
	sinceMargin = 10 * time.Minute
)

// Log is one topic with its dead letters and the group that consumes it.
type Log struct {
	Brokers         []string
	Topic           string // usage.Topic if empty
	DeadLetterTopic string // usage.DeadLetterTopic if empty; one that does not exist is an empty one
	Group           string // the consumer's; none if empty
}

var _ reconcile.Log = (*Log)(nil)

func (l *Log) topic() string { return orElse(l.Topic, usage.Topic) }

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// client is for one call; done closes its connections.
func (l *Log) client() (client *kafka.Client, done func()) {
	transport := &kafka.Transport{} // kafka-go's shared one answers questions for metadata from memory
	return &kafka.Client{Addr: kafka.TCP(l.Brokers...), Timeout: timeout, Transport: transport}, transport.CloseIdleConnections
}

// Partitions implements reconcile.Log.
func (l *Log) Partitions(ctx context.Context, since time.Time) ([]reconcile.Partition, error) {
	client, done := l.client()
	defer done()
	return partitions(ctx, client, l.topic(), since)
}

func partitions(ctx context.Context, client *kafka.Client, topic string, since time.Time) ([]reconcile.Partition, error) {
	ids, err := partitionIDs(ctx, client, topic)
	if err != nil {
		return nil, err
	}
	var ask []kafka.OffsetRequest
	for _, id := range ids {
		ask = append(ask, kafka.FirstOffsetOf(id), kafka.LastOffsetOf(id))
	}
	ends, err := listOffsets(ctx, client, topic, ask)
	if err != nil {
		return nil, err
	}
	var out []reconcile.Partition
	for _, p := range ends {
		out = append(out, reconcile.Partition{Partition: p.Partition, Earliest: p.FirstOffset, Start: p.FirstOffset, Latest: p.LastOffset, End: p.LastOffset, Committed: -1})
	}
	slices.SortFunc(out, func(a, b reconcile.Partition) int { return a.Partition - b.Partition })
	if since.IsZero() {
		return out, nil
	}
	ask = nil
	for _, id := range ids {
		ask = append(ask, kafka.TimeOffsetOf(id, since.Add(-sinceMargin)))
	}
	at, err := listOffsets(ctx, client, topic, ask)
	if err != nil {
		return nil, err
	}
	for i := range out {
		p := &out[i]
		p.Start = p.Latest // no message is so young
		for _, a := range at {
			if a.Partition != p.Partition {
				continue
			}
			for offset := range a.Offsets {
				if offset >= 0 {
					p.Start = min(max(offset, p.Earliest), p.Latest)
				}
			}
		}
	}
	return out, nil
}

func partitionIDs(ctx context.Context, client *kafka.Client, topic string) (ids []int, err error) {
	meta, err := client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{topic}})
	if err != nil {
		return nil, fmt.Errorf("ask Kafka for topic %s: %w", topic, err)
	}
	for _, t := range meta.Topics {
		if t.Error != nil {
			return nil, fmt.Errorf("topic %s: %w", topic, t.Error)
		}
		for _, p := range t.Partitions {
			ids = append(ids, p.ID)
		}
	}
	if len(ids) == 0 {
		return nil, fmt.Errorf("topic %s has no partitions", topic)
	}
	return ids, nil
}

func listOffsets(ctx context.Context, client *kafka.Client, topic string, ask []kafka.OffsetRequest) ([]kafka.PartitionOffsets, error) {
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

// Committed implements reconcile.Log.
func (l *Log) Committed(ctx context.Context) (map[int]int64, bool, error) {
	if l.Group == "" {
		return nil, false, nil
	}
	client, done := l.client()
	defer done()
	ids, err := partitionIDs(ctx, client, l.topic())
	if err != nil {
		return nil, true, err
	}
	r, err := client.OffsetFetch(ctx, &kafka.OffsetFetchRequest{GroupID: l.Group, Topics: map[string][]int{l.topic(): ids}})
	if err == nil {
		err = r.Error
	}
	if err != nil {
		return nil, true, fmt.Errorf("ask for the offsets of group %s: %w", l.Group, err)
	}
	at := map[int]int64{}
	for _, p := range r.Topics[l.topic()] {
		if p.Error != nil {
			return nil, true, fmt.Errorf("offset of partition %d of group %s: %w", p.Partition, l.Group, p.Error)
		}
		if p.CommittedOffset >= 0 { // -1: nothing
			at[p.Partition] = p.CommittedOffset
		}
	}
	return at, true, nil
}

// Read implements reconcile.Log. It reads as many partitions at once as there are processors, each with one fetch of up to 4 MiB.
func (l *Log) Read(ctx context.Context, spans []reconcile.Span, add func(reconcile.Message) error) error {
	return l.Records(ctx, spans, func(at reconcile.Place, rec *usage.Record, unusable string) error {
		if rec == nil {
			return add(reconcile.Message{Event: reconcile.Event{Place: at}, Unusable: unusable})
		}
		return add(reconcile.Message{Event: reconcile.FromRecord(rec, at)})
	})
}

// Records gives each message of some spans in full, as Read does: its record, or nil and why it has none.
func (l *Log) Records(ctx context.Context, spans []reconcile.Span, add func(at reconcile.Place, rec *usage.Record, unusable string) error) error {
	client, done := l.client()
	defer done()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for _, s := range spans {
		g.Go(func() error {
			return read(ctx, client, l.topic(), s, func(r *kafka.Record, value []byte) error {
				at := reconcile.Place{Partition: s.Partition, Offset: r.Offset}
				rec, err := usage.Decode(value)
				if err == nil {
					return add(at, &rec, "")
				}
				var why *usage.DecodeError
				if !errors.As(err, &why) {
					return err
				}
				return add(at, nil, why.Reason)
			})
		})
	}
	return g.Wait()
}

// Headers of a dead letter (the consumer's package kafkadeadletters). Of one that is there twice the last counts: the first is the message's own.
const (
	headerReason    = "reason"
	headerTopic     = "topic"
	headerPartition = "partition"
	headerOffset    = "offset"
)

// DeadLetters implements reconcile.Log.
func (l *Log) DeadLetters(ctx context.Context, add func(at reconcile.Place, reason string)) error {
	client, done := l.client()
	defer done()
	topic := orElse(l.DeadLetterTopic, usage.DeadLetterTopic)
	ends, err := partitions(ctx, client, topic, time.Time{})
	if errors.Is(err, kafka.UnknownTopicOrPartition) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, p := range ends {
		err := read(ctx, client, topic, reconcile.Span{Partition: p.Partition, Start: p.Earliest, End: p.Latest}, func(r *kafka.Record, _ []byte) error {
			h := map[string]string{}
			for _, header := range r.Headers {
				h[header.Key] = string(header.Value)
			}
			partition, err1 := strconv.Atoi(h[headerPartition])
			offset, err2 := strconv.ParseInt(h[headerOffset], 10, 64)
			if h[headerTopic] == l.topic() && err1 == nil && err2 == nil {
				add(reconcile.Place{Partition: partition, Offset: offset}, h[headerReason])
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// read gives the records of a span in order.
func read(ctx context.Context, client *kafka.Client, topic string, s reconcile.Span, add func(*kafka.Record, []byte) error) error {
	progressed := time.Now()
	for next := s.Start; next < s.End; {
		// What lies below the end is there already, so no fetch has to wait.
		f, err := client.Fetch(ctx, &kafka.FetchRequest{Topic: topic, Partition: s.Partition, Offset: next, MinBytes: 1, MaxBytes: maxFetch, MaxWait: time.Second})
		if err == nil {
			err = f.Error
		}
		before := next
		if err == nil {
			next, err = readAll(f.Records, next, s.End, add)
		}
		switch {
		case err != nil:
			return fmt.Errorf("read partition %d of %s at offset %d: %w", s.Partition, topic, next, err)
		case next > before:
			progressed = time.Now()
		case time.Since(progressed) > stall:
			return fmt.Errorf("read partition %d of %s: nothing at offset %d for %s, though it ends at %d", s.Partition, topic, next, stall, s.End)
		}
	}
	return nil
}

// readAll gives the records from offset next up to end, and the offset behind the last.
func readAll(records kafka.RecordReader, next, end int64, add func(*kafka.Record, []byte) error) (int64, error) {
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
		if err := add(r, value); err != nil {
			return next, err
		}
	}
}
