package kafkadeadletters

import (
	"errors"
	"strings"
	"testing"

	"github.com/segmentio/kafka-go"

	"github.com/tollgate-dev/tollgate/pkg/usage"
	"github.com/tollgate-dev/tollgate/services/consumer/internal/consume"
)

func letter(value []byte, cause string) consume.DeadLetter {
	return consume.DeadLetter{Reason: usage.ReasonNotJSON, Err: errors.New(cause), Message: consume.Message{
		Position: consume.Position{Topic: usage.Topic, Partition: 3, Offset: 42},
		Message:  usage.Message{Key: []byte("k"), Value: value, Headers: []usage.Header{{Key: "topic", Value: "the message's own"}}}}}
}

func last(m kafka.Message, key string) (value string) {
	for _, h := range m.Headers {
		if h.Key == key {
			value = string(h.Value)
		}
	}
	return value
}

func TestLetterTellsWhyAndWhereFrom(t *testing.T) {
	m := message(letter([]byte("hello"), "no"))
	for key, want := range map[string]string{HeaderReason: usage.ReasonNotJSON, HeaderError: "no", HeaderTopic: usage.Topic, HeaderPartition: "3", HeaderOffset: "42", HeaderCutFrom: ""} {
		if got := last(m, key); got != want {
			t.Errorf("header %s is %q, want %q", key, got, want)
		}
	}
	if string(m.Key) != "k" || string(m.Value) != "hello" || string(m.Headers[0].Value) != "the message's own" {
		t.Errorf("the original has changed: %+v", m)
	}
}

// A letter that the broker would refuse for its size would hold up its partition for ever.
func TestLetterAlwaysFits(t *testing.T) {
	m := message(letter(make([]byte, 1<<20), strings.Repeat("é", 1<<20)))
	if len(m.Value) != maxValue || last(m, HeaderCutFrom) != "1048576" {
		t.Errorf("value of %d bytes, cut from %q", len(m.Value), last(m, HeaderCutFrom))
	}
	if e := last(m, HeaderError); len(e) > maxError || strings.ContainsRune(e, '\uFFFD') {
		t.Errorf("error of %d bytes", len(e))
	}
}
