package kafkasource

import (
	"flag"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	embeddedkafka "github.com/tollgate-dev/tollgate/pkg/embedded/kafka"
	"github.com/tollgate-dev/tollgate/pkg/testkit/stores"
	"github.com/tollgate-dev/tollgate/pkg/usage"
)

func TestMain(m *testing.M) { stores.Main(m) }

var benchMessages = flag.Int("messages", 100_000, "messages of the topic in BenchmarkWhole")

// BenchmarkWhole reads a topic of 12 partitions, of messages of 700 bytes, as each start of a consumer reads quota.changes.v1.
func BenchmarkWhole(b *testing.B) {
	brokers := stores.Kafka(b, embeddedkafka.Topic{Name: usage.QuotaTopic, Partitions: usage.Partitions}).Brokers()
	w := &kafka.Writer{Addr: kafka.TCP(brokers...), Transport: &kafka.Transport{}, Topic: usage.QuotaTopic, RequiredAcks: kafka.RequireAll, BatchSize: 1000,
		BatchTimeout: time.Millisecond, Balancer: &kafka.Hash{}}
	defer w.Close()
	value := make([]byte, 700)
	for from := 0; from < *benchMessages; from += 10_000 {
		chunk := make([]kafka.Message, min(10_000, *benchMessages-from))
		for i := range chunk {
			chunk[i] = kafka.Message{Key: fmt.Append(nil, "user:", from+i), Value: value}
		}
		if err := w.WriteMessages(b.Context(), chunk...); err != nil {
			b.Fatal(err)
		}
	}
	var took time.Duration
	for b.Loop() {
		began := time.Now()
		s, err := OpenWhole(b.Context(), Config{Brokers: brokers, Topic: usage.QuotaTopic, ClientID: "bench"}, slog.New(slog.DiscardHandler))
		if err != nil {
			b.Fatal(err)
		}
		for range *benchMessages {
			if _, err := s.Fetch(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
		took += time.Since(began)
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(*benchMessages*b.N)/took.Seconds(), "messages/s")
}
