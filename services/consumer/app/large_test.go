package app

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/segmentio/kafka-go"

	"github.com/tollgate-dev/tollgate/pkg/testkit/realkafka"
	"github.com/tollgate-dev/tollgate/pkg/testkit/stores"
)

// Case B87, of a size: a dead letter is larger than its message by what is told of it, and may be larger than its topic takes.
func TestAMessageOfAnySizeBecomesADeadLetterAndDoesNotBlock(t *testing.T) {
	const most = 1 << 20 // Kafka's limit is 12 bytes above it, of which a batch and a record need some
	fill := func(n int) []byte { return bytes.Repeat([]byte("x"), n) }
	messages := []kafka.Message{
		{Value: []byte("{"), Headers: []kafka.Header{{Key: "h", Value: fill(most - 120)}}},
		{Value: []byte("{"), Key: fill(most - 120)},
		{Value: fill(768 << 10), Headers: []kafka.Header{{Key: "h", Value: fill(256<<10 - 120)}}},
		{Value: fill(most - 120)},
	}
	test := func(t *testing.T, r *rig) {
		c := r.start()
		w := &kafka.Writer{Addr: kafka.TCP(r.cfg.KafkaBrokers...), Transport: &kafka.Transport{}, Topic: r.cfg.Topic, RequiredAcks: kafka.RequireAll,
			BatchTimeout: time.Millisecond, BatchBytes: 2 << 20}
		defer w.Close()
		for _, m := range messages { // each a batch of its own
			if err := w.WriteMessages(t.Context(), m); err != nil {
				t.Fatal(err)
			}
		}
		r.produce(family("acme", 20)...)
		r.awaitEvents(20)
		r.awaitCommitted()
		if got := c.metric(`tollgate_consumer_records_total{result="dead_letter"}`); got != float64(len(messages)) {
			t.Errorf("%v dead letters, want %d", got, len(messages))
		}
	}
	onBothBrokers(t, test)
	t.Run("a topic with a lower limit", func(t *testing.T) {
		s := realkafka.Shared(t)
		letters := "letters-" + uuid.NewString()
		s.CreateTopic(t, letters, 1, map[string]string{"max.message.bytes": "5000"})
		test(t, newRig(t, broker{s.Brokers(), s.FreshTopic(t, partitions), letters}, stores.ClickHouse(t).DSN))
	})
}
