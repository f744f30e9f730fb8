// Package kafkasource reads the EVENT stage's log as a member of a consumer group, with segmentio/kafka-go.
//
// What repeats: messages that were fetched but not committed when the process died or the group rebalanced. kafka-go also hands out what
// it had fetched before a rebalance (its issue 1398): some messages come to the old and the new owner. What removes the repeat: the
// ledger, by event_id. No message is passed over: an offset is committed only after this process has stored all that it fetched
// before it, and fetching began at what was committed.
//
// What retention has removed before the group committed it can't be read any more: it is logged as an error and counted, and reading goes on at the
// log's beginning.
//
// kafka-go shows a tombstone and an empty value alike, as nil; neither can be used, so only their dead letters become one.
//
// Settings that differ from kafka-go's defaults, and why:
//
//   - The topic is waited for before the group is joined: a member that joins before is given nothing, for ever (issues 800,
//     1314, 1414). Later partitions are noticed within 5 s.
//   - Session 10 s: the successor of a killed process waits that long, not 30 s.
//   - Commits are synchronous, so that a stop ends with its offsets committed.
package kafkasource

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/tollgate-dev/tollgate/pkg/usage"
	"github.com/tollgate-dev/tollgate/services/consumer/internal/consume"
)

// Config says what to read.
type Config struct {
	Brokers  []string
	Topic    string
	Group    string // a new group begins at the earliest offset
	ClientID string
	Queue    int // messages fetched ahead; they are held in memory
}

const (
	topicPoll  = time.Second
	askTimeout = 5 * time.Second
	maxFetch   = 4 << 20 // bytes of one fetch of a partition; streamed, not held
)

// Source is a member of the group.
type Source struct {
	cfg       Config
	log       *slog.Logger // nil for who is no member
	losses    losses
	client    *kafka.Client
	transport *kafka.Transport
	reader    *kafka.Reader
}

var _ consume.Source = (*Source)(nil)

func newSource(cfg Config) *Source {
	transport := &kafka.Transport{ClientID: cfg.ClientID}
	return &Source{cfg: cfg, transport: transport, client: &kafka.Client{Addr: kafka.TCP(cfg.Brokers...), Timeout: askTimeout, Transport: transport}}
}

// hangUp closes the client's connections.
func (s *Source) hangUp() { s.transport.CloseIdleConnections() }

// await waits until the brokers answer and the topic exists, with a line of log now and then, and gives the partitions.
func (s *Source) await(ctx context.Context, log *slog.Logger) ([]int, error) {
	for tries := 0; ; tries++ {
		partitions, err := s.partitions(ctx)
		if err == nil {
			return partitions, nil
		}
		if tries%15 == 0 {
			log.Warn("waiting for Kafka and the topic", "topic", s.cfg.Topic, "err", err)
		}
		select {
		case <-time.After(topicPoll):
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for topic %s: %w", s.cfg.Topic, ctx.Err())
		}
	}
}

// look finds what was lost to retention since the group committed last: once the group goes on, Kafka no longer tells.
func (s *Source) look(ctx context.Context) error {
	for tries := 0; ; tries++ {
		_, err := s.Lag(ctx)
		if err == nil || errors.Is(err, ErrBeyondEnd) || errors.Is(err, kafka.GroupIdNotFound) { // a new group has lost nothing
			return nil
		}
		if tries%15 == 0 {
			s.log.Warn("waiting for the group's offsets", "group", s.cfg.Group, "err", err)
		}
		select {
		case <-time.After(topicPoll):
		case <-ctx.Done():
			return fmt.Errorf("wait for the offsets of group %s: %w", s.cfg.Group, ctx.Err())
		}
	}
}

// Open waits until the brokers answer and the topic exists, with a line of log now and then, looks for what retention took from the group, and
// joins it. It fails only if ctx ends.
func Open(ctx context.Context, cfg Config, log *slog.Logger) (*Source, error) {
	s := newSource(cfg)
	s.log = log
	partitions, err := s.await(ctx, log)
	if err != nil {
		return nil, err
	}
	if err := s.look(ctx); err != nil {
		return nil, err
	}
	log.Info("reading the event log", "topic", cfg.Topic, "partitions", len(partitions), "group", cfg.Group)
	s.reader = kafka.NewReader(kafka.ReaderConfig{
		Brokers: cfg.Brokers, Topic: cfg.Topic, GroupID: cfg.Group, StartOffset: kafka.FirstOffset,
		Dialer:        &kafka.Dialer{Timeout: askTimeout, DualStack: true, ClientID: cfg.ClientID},
		QueueCapacity: cfg.Queue, MinBytes: 1, MaxBytes: maxFetch, MaxWait: time.Second,
		WatchPartitionChanges: true, PartitionWatchInterval: 5 * time.Second,
		HeartbeatInterval: time.Second, SessionTimeout: 10 * time.Second, RebalanceTimeout: 10 * time.Second, JoinGroupBackoff: 500 * time.Millisecond,
		CommitInterval: 0,
		ErrorLogger:    kafka.LoggerFunc(func(format string, args ...any) { log.Debug("kafka-go", "says", fmt.Sprintf(format, args...)) }),
	})
	return s, nil
}

// Fetch implements consume.Source.
func (s *Source) Fetch(ctx context.Context) (consume.Message, error) {
	m, err := s.reader.FetchMessage(ctx)
	if err != nil {
		return consume.Message{}, fmt.Errorf("fetch from %s: %w", s.cfg.Topic, err)
	}
	return message(m), nil
}

func message(m kafka.Message) consume.Message {
	out := consume.Message{Position: consume.Position{Topic: m.Topic, Partition: m.Partition, Offset: m.Offset},
		Message: usage.Message{Key: m.Key, Value: m.Value}}
	for _, h := range m.Headers {
		out.Headers = append(out.Headers, usage.Header{Key: h.Key, Value: string(h.Value)})
	}
	return out
}

// Commit implements consume.Source.
func (s *Source) Commit(ctx context.Context, at []consume.Position) error {
	messages := make([]kafka.Message, len(at))
	for i, p := range at {
		messages[i] = kafka.Message{Topic: p.Topic, Partition: p.Partition, Offset: p.Offset}
	}
	if err := s.reader.CommitMessages(ctx, messages...); err != nil {
		return fmt.Errorf("commit %d partitions of %s: %w", len(at), s.cfg.Topic, err)
	}
	return nil
}

// Close leaves the group, so that others take over at once.
func (s *Source) Close() error { return s.reader.Close() }

// Ping asks whether the brokers answer for the topic. It asks for offsets, because kafka-go answers a question for metadata from
// memory, for long after the broker has gone.
func (s *Source) Ping(ctx context.Context) error {
	_, err := s.ends(ctx, []int{0})
	return err
}

// ends gives the first and the last offset of partitions.
func (s *Source) ends(ctx context.Context, ids []int) ([]kafka.PartitionOffsets, error) {
	var ask []kafka.OffsetRequest
	for _, id := range ids {
		ask = append(ask, kafka.FirstOffsetOf(id), kafka.LastOffsetOf(id))
	}
	r, err := s.client.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{s.cfg.Topic: ask}})
	if err != nil {
		return nil, fmt.Errorf("ask for the ends of %s: %w", s.cfg.Topic, err)
	}
	for _, p := range r.Topics[s.cfg.Topic] {
		if p.Error != nil {
			return nil, fmt.Errorf("end of partition %d of %s: %w", p.Partition, s.cfg.Topic, p.Error)
		}
	}
	return r.Topics[s.cfg.Topic], nil
}

// partitions fails if the topic does not exist or one of its partitions has no leader.
func (s *Source) partitions(ctx context.Context) ([]int, error) {
	r, err := s.client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{s.cfg.Topic}})
	if err != nil {
		return nil, fmt.Errorf("ask Kafka for topic %s: %w", s.cfg.Topic, err)
	}
	var ids []int
	for _, t := range r.Topics {
		if t.Error != nil {
			return nil, fmt.Errorf("topic %s: %w", s.cfg.Topic, t.Error)
		}
		for _, p := range t.Partitions {
			if p.Error != nil {
				return nil, fmt.Errorf("partition %d of %s: %w", p.ID, s.cfg.Topic, p.Error)
			}
			ids = append(ids, p.ID)
		}
	}
	if len(ids) == 0 {
		return nil, fmt.Errorf("topic %s has no partitions yet", s.cfg.Topic)
	}
	return ids, nil
}

// ErrBeyondEnd tells that the group has committed more than the log holds: the topic was made anew under a group that still knew
// the old one. What lies below the committed offset would never be read.
var ErrBeyondEnd = errors.New("the committed offset lies beyond the end of the log")

// Lag gives the number of messages that the group has not committed, by partition, all members' together. On ErrBeyondEnd the map
// is valid, and negative where it is so.
func (s *Source) Lag(ctx context.Context) (map[int]int64, error) {
	ids, err := s.partitions(ctx)
	if err != nil {
		return nil, err
	}
	committed, err := s.client.OffsetFetch(ctx, &kafka.OffsetFetchRequest{GroupID: s.cfg.Group, Topics: map[string][]int{s.cfg.Topic: ids}})
	if err == nil {
		err = committed.Error
	}
	if err != nil {
		return nil, fmt.Errorf("ask for the offsets of group %s: %w", s.cfg.Group, err)
	}
	ends, err := s.ends(ctx, ids)
	if err != nil {
		return nil, err
	}
	at := map[int]int64{}
	for _, p := range committed.Topics[s.cfg.Topic] {
		if p.Error != nil {
			return nil, fmt.Errorf("offset of partition %d of group %s: %w", p.Partition, s.cfg.Group, p.Error)
		}
		at[p.Partition] = p.CommittedOffset
	}
	lag := map[int]int64{}
	var beyond error
	for _, p := range ends {
		from, ok := at[p.Partition]
		if ok {
			s.note(p.Partition, from, p.FirstOffset)
		}
		if !ok || from < p.FirstOffset { // nothing committed is -1; what retention removed can't be read any more
			from = p.FirstOffset
		}
		lag[p.Partition] = p.LastOffset - from
		if lag[p.Partition] < 0 {
			beyond = fmt.Errorf("partition %d of %s: committed %d, end %d: %w", p.Partition, s.cfg.Topic, from, p.LastOffset, ErrBeyondEnd)
		}
	}
	return lag, beyond
}

// note logs what was lost, each message once.
func (s *Source) note(partition int, committed, first int64) {
	from, n := s.losses.note(partition, committed, first)
	if n > 0 && s.log != nil {
		s.log.Error("messages were lost to retention before they were consumed", "topic", s.cfg.Topic, "group", s.cfg.Group, "partition", partition,
			"messages", n, "from", from, "log_begins", first)
	}
}

// Lag is Source.Lag for whoever is no member of the group.
func Lag(ctx context.Context, cfg Config) (map[int]int64, error) {
	s := newSource(cfg)
	defer s.hangUp()
	return s.Lag(ctx)
}
