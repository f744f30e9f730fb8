// Package kafkadeadletters keeps what the consumer can't use in a topic of its own: the original key, value and headers, and five more
// headers that say why and where from.
//
// What repeats: a write whose answer was lost, and letters whose batch was not committed. Nothing removes the repeat here: a reader
// knows it by the topic, partition and offset headers. A write returns once every replica in sync has it.
package kafkadeadletters

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	HeaderCut       = "cut"       // "key", "headers" or both, with a comma: what else of the message was too large to keep whole
)

// Kafka's default limit of a message is 1 MiB, key and headers included, so a letter as large as the largest message would not fit. Of such
// a message the beginning is kept; the rest is at the named place in the log. Topics may have a lower limit: then next to nothing is kept.
const (
	maxLetter  = 896 << 10 // bytes of key, value and the message's own headers
	minLetter  = 1 << 10   // of a letter that the broker has refused for its size
	maxBatch   = maxLetter + 64<<10
	maxError   = 1000
	perHeader  = 16 // bytes that a header takes beside its key and value, at most
	keyShare   = 14 // of a letter: a fourteenth for the key, as much for the headers, the rest for the value
	valueShare = keyShare - 2
)

// Writer writes to one topic.
type Writer struct{ w *kafka.Writer }

var _ consume.DeadLetters = (*Writer)(nil)

// Open makes a writer. Nothing is dialled yet; the topic must exist by the time of the first write.
func Open(brokers []string, topic, clientID string) *Writer {
	return &Writer{&kafka.Writer{
		Addr: kafka.TCP(brokers...), Topic: topic, Balancer: &kafka.Hash{}, RequiredAcks: kafka.RequireAll, BatchBytes: maxBatch,
		BatchTimeout: 5 * time.Millisecond, MaxAttempts: 3, WriteTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second,
		Transport: &kafka.Transport{ClientID: clientID, DialTimeout: 5 * time.Second},
	}}
}

// Write implements consume.DeadLetters. A letter that is too large for the topic is cut further: its partition must go on.
func (w *Writer) Write(ctx context.Context, letters []consume.DeadLetter) error {
	messages := make([]kafka.Message, len(letters))
	for i, l := range letters {
		messages[i] = message(l, maxLetter)
	}
	err := w.w.WriteMessages(ctx, messages...)
	for i := 0; tooLarge(err) && i < len(messages); i++ { // one of them; a broker refuses its whole batch
		one := w.w.WriteMessages(ctx, messages[i])
		if tooLarge(one) {
			one = w.w.WriteMessages(ctx, message(letters[i], minLetter))
		}
		if one != nil {
			err = one
			break
		}
		if i == len(messages)-1 {
			err = nil
		}
	}
	if err != nil {
		return fmt.Errorf("write %d dead letters to %s: %w", len(letters), w.w.Topic, err)
	}
	return nil
}

// tooLarge tells a refusal for size, by the client or the broker, of a single message or of one among several.
func tooLarge(err error) bool {
	if several, ok := errors.AsType[kafka.WriteErrors](err); ok {
		return slices.ContainsFunc(several, tooLarge)
	}
	_, bySelf := errors.AsType[kafka.MessageTooLargeError](err)
	return bySelf || errors.Is(err, kafka.MessageSizeTooLarge)
}

// message makes a letter that keeps at most so many bytes of the message.
func message(l consume.DeadLetter, most int) kafka.Message {
	m := kafka.Message{Key: l.Key, Value: l.Value}
	var cut []string
	if share := most / keyShare; len(m.Key) > share {
		m.Key, cut = m.Key[:share], append(cut, "key")
	}
	room := most / keyShare
	for _, h := range l.Headers {
		if room -= len(h.Key) + len(h.Value) + perHeader; room < 0 {
			cut = append(cut, "headers")
			break
		}
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
	if share := most / keyShare * valueShare; len(m.Value) > share {
		add(HeaderCutFrom, strconv.Itoa(len(m.Value)))
		m.Value = m.Value[:share]
	}
	if len(cut) > 0 {
		add(HeaderCut, strings.Join(cut, ","))
	}
	return m
}

// Close waits for writes under way.
func (w *Writer) Close() error { return w.w.Close() }
