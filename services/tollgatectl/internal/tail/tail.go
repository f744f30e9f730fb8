// Package tail follows the EVENT stage's log: usage records as they are written.
//
// It reads with no group and commits nothing. Records of one partition come in order; a repeat is shown again.
package tail

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"
	"golang.org/x/sync/errgroup"

	"github.com/tollgate-dev/tollgate/pkg/reconcile/kafkalog"
	"github.com/tollgate-dev/tollgate/pkg/usage"
)

// Filter says which records are wanted; empty fields want all.
type Filter struct{ Org, User, Key, Model, Outcome string }

// Wants tells whether a record passes.
func (f Filter) Wants(r *usage.Record) bool {
	for _, p := range [...][2]string{{f.Org, r.OrgID}, {f.User, r.UserID}, {f.Key, r.APIKeyID}, {f.Model, r.Model}, {f.Outcome, string(r.Outcome)}} {
		if p[0] != "" && p[0] != p[1] {
			return false
		}
	}
	return true
}

// Message is one message of the log. Unusable tells why its value is no record.
type Message struct {
	Partition int          `json:"partition"`
	Offset    int64        `json:"offset"`
	Record    usage.Record `json:"record"`
	Unusable  string       `json:"-"`
}

// ErrEnough is what show returns to end Follow.
var ErrEnough = errors.New("enough")

// Follow shows what is written from now on, and before that what was written since (if not zero), until ctx ends or show returns ErrEnough; then it
// returns nil. show is called by one goroutine at a time.
func Follow(ctx context.Context, brokers []string, topic string, since time.Time, show func(Message) error) error {
	parts, err := (&kafkalog.Log{Brokers: brokers, Topic: topic}).Partitions(ctx, since)
	if err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	messages := make(chan kafka.Message)
	for _, p := range parts {
		from := p.Latest
		if !since.IsZero() {
			from = p.Start
		}
		g.Go(func() error { return follow(gctx, brokers, topic, p.Partition, from, since, messages) })
	}
	g.Go(func() error {
		for {
			select {
			case m := <-messages:
				shown := Message{Partition: m.Partition, Offset: m.Offset}
				var err error
				if shown.Record, err = usage.Decode(m.Value); err != nil {
					shown.Unusable = err.Error()
				}
				if err := show(shown); err != nil {
					return err
				}
			case <-gctx.Done():
				return gctx.Err()
			}
		}
	})
	if err := g.Wait(); ctx.Err() == nil && !errors.Is(err, ErrEnough) {
		return err
	}
	return nil
}

func follow(ctx context.Context, brokers []string, topic string, partition int, from int64, since time.Time, to chan<- kafka.Message) (err error) {
	r := kafka.NewReader(kafka.ReaderConfig{Brokers: brokers, Topic: topic, Partition: partition, MinBytes: 1, MaxBytes: 4 << 20, MaxWait: time.Second})
	defer func() { err = errors.Join(err, r.Close()) }()
	if err := r.SetOffset(from); err != nil {
		return fmt.Errorf("read partition %d of %s: %w", partition, topic, err)
	}
	for {
		m, err := r.ReadMessage(ctx)
		if err != nil {
			return fmt.Errorf("read partition %d of %s: %w", partition, topic, err)
		}
		if m.Time.Before(since) {
			continue
		}
		select {
		case to <- m:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
