// Package kafkadeadletters keeps what the consumer can't use in a topic of its own: the original key, value and headers, and five more
// headers that say why and where from.
//
// What repeats: a write whose answer was lost, and letters whose batch was not committed. Nothing removes the repeat here: a reader
// knows it by the topic, partition and offset headers. A write returns once every replica in sync has it.
package kafkadeadletters

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/tollgate-dev/tollgate/services/consumer/internal/consume"
)

// Headers that are added to the message's own. A message that bears one already keeps it, in front.
const (
	HeaderReason    = "reason"    // one of consume.Reasons
	HeaderError     = "error"     // for people; at most 1,000 bytes
	HeaderTopic     = "topic"     // where it lay
	HeaderPartition = "partition" // decimal
	HeaderOffset    = "offset"    // decimal
	HeaderCutFrom   = "cut_from"  // decimal: the value's length in bytes, if it was too large to keep whole
)

// Kafka's default limit of a message is 1 MiB, headers included, so a letter as large as the largest message would not fit. Of such
// a value the beginning is kept; the rest is at the named place in the log.
const (
	maxValue = 768 << 10
	maxError = 1000
)

// Writer writes to one topic.
type Writer struct{ w *kafka.Writer }

var _ consume.DeadLetters = (*Writer)(nil)

// Open makes a writer. Nothing is dialled yet; the topic must exist by the time of the first write.
func Open(brokers []string, topic, clientID string) *Writer {
	return &Writer{&kafka.Writer{
		Addr: kafka.TCP(brokers...), Topic: topic, Balancer: &kafka.Hash{}, RequiredAcks: kafka.RequireAll,
		BatchTimeout: 5 * time.Millisecond, MaxAttempts: 3, WriteTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second,
		Transport: &kafka.Transport{ClientID: clientID, DialTimeout: 5 * time.Second},
	}}
}

// Write implements consume.DeadLetters.
func (w *Writer) Write(ctx context.Context, letters []consume.DeadLetter) error {
	messages := make([]kafka.Message, len(letters))
	for i, l := range letters {
		messages[i] = message(l)
	}
	if err := w.w.WriteMessages(ctx, messages...); err != nil {
		return fmt.Errorf("write %d dead letters to %s: %w", len(letters), w.w.Topic, err)
	}
	return nil
}

func message(l consume.DeadLetter) kafka.Message {
	m := kafka.Message{Key: l.Key, Value: l.Value}
	for _, h := range l.Headers {
		m.Headers = append(m.Headers, kafka.Header{Key: h.Key, Value: []byte(h.Value)})
	}
	add := func(key, value string) { m.Headers = append(m.Headers, kafka.Header{Key: key, Value: []byte(value)}) }
	add(HeaderReason, l.Reason)
	text := ""
	if l.Err != nil {
		text = l.Err.Error()
	}
	add(HeaderError, strings.ToValidUTF8(text[:min(len(text), maxError)], ""))
	add(HeaderTopic, l.Topic)
	add(HeaderPartition, strconv.Itoa(l.Partition))
	add(HeaderOffset, strconv.FormatInt(l.Offset, 10))
	if len(m.Value) > maxValue {
		add(HeaderCutFrom, strconv.Itoa(len(m.Value)))
		m.Value = m.Value[:maxValue]
	}
	return m
}

// Close waits for writes under way.
func (w *Writer) Close() error { return w.w.Close() }
