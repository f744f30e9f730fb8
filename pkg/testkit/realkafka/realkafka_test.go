package realkafka

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tollgate-dev/tollgate/pkg/testkit/crash"
)

func TestMain(m *testing.M) { Main(m) }

func produce(ctx context.Context, t *testing.T, s *Server, topic string) error {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(s.Brokers()...), kgo.DefaultProduceTopic(topic), kgo.RecordDeliveryTimeout(2*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	return client.ProduceSync(ctx, kgo.StringRecord("v")).FirstErr()
}

func consume(t *testing.T, s *Server, topic string) *kgo.Record {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(s.Brokers()...), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	fetches := client.PollRecords(ctx, 1)
	if err := fetches.Err(); err != nil {
		t.Fatal(err)
	}
	return fetches.Records()[0]
}

func TestSharedServerTakesAndGivesRecords(t *testing.T) {
	s := Shared(t)
	topic := s.FreshTopic(t, 3)
	if err := produce(t.Context(), t, s, topic); err != nil {
		t.Fatal(err)
	}
	if r := consume(t, s, topic); string(r.Value) != "v" {
		t.Fatalf("got %q", r.Value)
	}
}

func TestPausedServerAnswersOnlyWhenResumed(t *testing.T) {
	s := Shared(t) // nothing else runs meanwhile
	topic := s.FreshTopic(t, 1)
	s.Pause(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := produce(ctx, t, s, topic); err == nil {
		t.Fatal("a paused server answers")
	}
	s.Resume(t)
	if err := produce(t.Context(), t, s, topic); err != nil {
		t.Fatal(err)
	}
}

func TestAcknowledgedRecordsSurviveKill(t *testing.T) {
	s := Start(t)
	s.CreateTopic(t, "kept", 1, map[string]string{"cleanup.policy": "compact"})
	client, err := kgo.NewClient(kgo.SeedBrokers(s.Brokers()...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: "kept", Key: []byte("k"), Value: []byte("v")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	s.Kill()
	if err := produce(t.Context(), t, s, "kept"); err == nil {
		t.Fatal("a killed server answers")
	}
	s.Restart(t)
	if r := consume(t, s, "kept"); string(r.Value) != "v" {
		t.Fatalf("got %q", r.Value)
	}
	s.Stop(t)
}

func TestServerDiesWithItsParent(t *testing.T) {
	victim, pid := crash.Start(t, func() int { return Start(t).Pid() })
	victim.Kill()
	crash.AwaitGone(t, pid)
}
