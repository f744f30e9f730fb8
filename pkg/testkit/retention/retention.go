// Package retention takes the beginning of a log away, as Kafka does when messages are older than they are kept.
package retention

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// DropBefore removes the messages of all partitions of a topic below an offset, as retention does.
func DropBefore(t testing.TB, brokers []string, topic string, offset int64) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	admin := kadm.NewClient(client)
	ends, err := admin.ListEndOffsets(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		t.Fatalf("ask for the partitions of %s: %v", topic, err)
	}
	at := kadm.Offsets{}
	ends.Each(func(o kadm.ListedOffset) {
		at.Add(kadm.Offset{Topic: topic, Partition: o.Partition, At: offset, LeaderEpoch: -1})
	})
	dropped, err := admin.DeleteRecords(ctx, at)
	if err == nil {
		err = dropped.Error()
	}
	if err != nil {
		t.Fatalf("drop records of %s: %v", topic, err)
	}
}
