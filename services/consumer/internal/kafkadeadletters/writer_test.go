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
	m := message(letter([]byte("hello"), "no"), maxLetter)
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
	for _, most := range []int{maxLetter, minLetter} {
		large := letter(make([]byte, 1<<20), strings.Repeat("é", 1<<20))
		large.Key = make([]byte, 1<<20)
		large.Headers = []usage.Header{{Key: "small", Value: "kept"}, {Key: "h", Value: strings.Repeat("x", 1<<20)}, {Key: "behind", Value: "it"}}
		m := message(large, most)
		if got := len(m.Key) + len(m.Value); got > most || got < most*8/10 || last(m, HeaderCutFrom) != "1048576" || last(m, HeaderCut) != "key,headers" {
			t.Errorf("key of %d bytes, value of %d, cut from %q, cut %q", len(m.Key), len(m.Value), last(m, HeaderCutFrom), last(m, HeaderCut))
		}
		if m.Headers[0].Key != "small" || m.Headers[1].Key != HeaderReason {
			t.Errorf("headers %+v", m.Headers[:2])
		}
		if e := last(m, HeaderError); len(e) > maxError || strings.ContainsRune(e, '\uFFFD') {
			t.Errorf("error of %d bytes", len(e))
		}
	}
	if m := message(letter(make([]byte, 700<<10), ""), maxLetter); len(m.Value) != 700<<10 || last(m, HeaderCutFrom)+last(m, HeaderCut) != "" {
		t.Error("cut without need")
	}
}
