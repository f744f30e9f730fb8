// Package kafkarelay brings committed changes to Kafka (quota.changes.v1), at least once, and per subject in the order of their versions.
//
// One instance at a time relays: the one that holds a Postgres advisory lock, on the connection that it works on. Order holds because a
// key always goes to the same partition, and because after a failed write everything of a key from the first unacknowledged event on is
// written again.
//
// When Kafka fails: events wait in the outbox, tries are spaced up to five seconds. When Postgres fails: the lock is gone, so the relay
// stops until it leads again. A crash between Kafka's acknowledgement and the mark writes those events again, with the same event_id. An
// instance that lost its lock in the middle of a write may still deliver that one batch after its successor has begun; whoever keeps state
// goes by the version, as the schema says.
package kafkarelay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/segmentio/kafka-go"

	"github.com/tollgate-dev/tollgate/pkg/pgquota"
	"github.com/tollgate-dev/tollgate/pkg/usage"
)

const (
	poll       = 500 * time.Millisecond // how long a change of another instance may wait
	batch      = 500
	backoffMin = 200 * time.Millisecond
	backoffMax = 5 * time.Second
)

// Outbox lets one instance at a time lead.
type Outbox interface {
	Lead(ctx context.Context, f func(context.Context, *pgquota.Leader) error) (bool, error)
}

var _ Outbox = (*pgquota.Store)(nil)

// Writer writes messages and returns once all have an answer: nil, or a kafka.WriteErrors with one entry a message, or an error that
// stands for all.
type Writer interface {
	EnsureTopic(ctx context.Context) error
	Write(ctx context.Context, msgs []kafka.Message) error
}

// Relay writes the outbox to Kafka.
type Relay struct {
	outbox Outbox
	writer Writer
	log    *slog.Logger
	wake   chan struct{}
	sent   *prometheus.CounterVec
	leads  prometheus.Gauge
}

// New makes a relay. Metrics: tollgate_quota_events_total by result, tollgate_quota_relay_leads.
func New(o Outbox, w Writer, log *slog.Logger, reg prometheus.Registerer) *Relay {
	r := &Relay{outbox: o, writer: w, log: log, wake: make(chan struct{}, 1),
		sent: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tollgate_quota_events_total",
			Help: "Events written to " + usage.QuotaTopic + ", by result."}, []string{"result"}),
		leads: prometheus.NewGauge(prometheus.GaugeOpts{Name: "tollgate_quota_relay_leads", Help: "1 if this instance writes the outbox to Kafka."})}
	reg.MustRegister(r.sent, r.leads)
	r.sent.WithLabelValues("ok")
	r.sent.WithLabelValues("error")
	return r
}

// Wake tells that a change was committed.
func (r *Relay) Wake() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run relays, or waits for its turn, until ctx ends.
func (r *Relay) Run(ctx context.Context) error {
	wait := backoffMin
	for {
		led, err := r.outbox.Lead(ctx, r.lead)
		if led {
			wait = backoffMin
		}
		if err != nil && ctx.Err() == nil {
			r.log.WarnContext(ctx, "the outbox relay was interrupted", "err", err)
		}
		if !r.pause(ctx, wait, nil) {
			return nil
		}
		wait = min(2*wait, backoffMax/2)
	}
}

// lead relays until ctx ends or Postgres fails.
func (r *Relay) lead(ctx context.Context, l *pgquota.Leader) error {
	r.leads.Set(1)
	defer r.leads.Set(0)
	r.log.InfoContext(ctx, "this instance relays the outbox to kafka")
	wait, ensured := backoffMin, false
	for {
		var err error
		if !ensured {
			err = r.writer.EnsureTopic(ctx)
			ensured = err == nil
		}
		var more bool
		if err == nil {
			var storeErr error
			if more, err, storeErr = r.relay(ctx, l); storeErr != nil {
				return storeErr
			}
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			r.sent.WithLabelValues("error").Inc()
			r.log.WarnContext(ctx, "changes wait for kafka", "err", err, "retry_ms", wait.Milliseconds())
			if !r.pause(ctx, wait, nil) {
				return nil
			}
			wait = min(2*wait, backoffMax)
		case !more:
			wait = backoffMin
			if !r.pause(ctx, poll, r.wake) {
				return nil
			}
		}
	}
}

// relay writes one batch and marks what is surely there. more: there may be another batch.
func (r *Relay) relay(ctx context.Context, l *pgquota.Leader) (more bool, kafkaErr, storeErr error) {
	rows, err := l.Pending(ctx, batch)
	if err != nil || len(rows) == 0 {
		return false, nil, err
	}
	msgs := make([]kafka.Message, len(rows))
	for i, row := range rows {
		msgs[i] = message(row)
	}
	// A write is never abandoned: kafka-go would go on with it behind our back, and the next one could overtake it.
	kafkaErr = r.writer.Write(context.WithoutCancel(ctx), msgs)
	sent := acknowledged(rows, kafkaErr)
	r.sent.WithLabelValues("ok").Add(float64(len(sent)))
	if len(sent) > 0 {
		mark, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if err := l.MarkSent(mark, sent); err != nil {
			return false, kafkaErr, err
		}
	}
	return len(rows) == batch, kafkaErr, nil
}

// acknowledged lists the rows that need not be written again: those acknowledged before the first failure of their key.
func acknowledged(rows []pgquota.Message, err error) []int64 {
	var each kafka.WriteErrors
	if err != nil && (!errors.As(err, &each) || len(each) != len(rows)) {
		return nil
	}
	failed := map[string]bool{}
	var ids []int64
	for i, row := range rows {
		if each != nil && each[i] != nil {
			failed[row.Name] = true
		}
		if !failed[row.Name] {
			ids = append(ids, row.ID)
		}
	}
	return ids
}

func message(m pgquota.Message) kafka.Message {
	eventType := pgquota.QuotaEventType
	switch m.Kind {
	case pgquota.KindTier:
		eventType = pgquota.TierEventType
	case pgquota.KindPrice:
		eventType = pgquota.PriceEventType
	}
	headers := usage.CloudEventHeaders(m.EventID.String(), eventType, pgquota.EventSource, m.Name, usage.At(m.CreatedAt))
	out := kafka.Message{Key: []byte(m.Name), Value: m.Payload, Headers: make([]kafka.Header, len(headers))}
	for i, h := range headers {
		out.Headers[i] = kafka.Header{Key: h.Key, Value: []byte(h.Value)}
	}
	return out
}

// pause waits for d or for wake. false: ctx ended.
func (r *Relay) pause(ctx context.Context, d time.Duration, wake <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
	case <-wake:
	}
	return true
}

// Client is a Writer on a Kafka cluster.
type Client struct {
	writer    *kafka.Writer
	admin     *kafka.Client
	transport *kafka.Transport
}

var _ Writer = (*Client)(nil)

// Connect makes a client; it does not connect yet.
func Connect(brokers []string) *Client {
	transport := &kafka.Transport{DialTimeout: 3 * time.Second, ClientID: "tollgate-quota"}
	addr := kafka.TCP(brokers...)
	return &Client{transport: transport, admin: &kafka.Client{Addr: addr, Timeout: 5 * time.Second, Transport: transport},
		writer: &kafka.Writer{Addr: addr, Topic: usage.QuotaTopic, Balancer: &kafka.Hash{}, RequiredAcks: kafka.RequireAll, MaxAttempts: 1,
			BatchSize: batch, BatchTimeout: 5 * time.Millisecond, // its default of a second is a second's delay
			ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second, Transport: transport}}
}

// EnsureTopic makes the topic if it is not there: 12 partitions, compacted, the cluster's replication factor.
func (c *Client) EnsureTopic(ctx context.Context) error {
	resp, err := c.admin.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{{Topic: usage.QuotaTopic,
		NumPartitions: usage.Partitions, ReplicationFactor: -1, ConfigEntries: []kafka.ConfigEntry{{ConfigName: "cleanup.policy", ConfigValue: "compact"}}}}})
	if err != nil {
		return fmt.Errorf("make topic %s: %w", usage.QuotaTopic, err)
	}
	if err := resp.Errors[usage.QuotaTopic]; err != nil && !errors.Is(err, kafka.TopicAlreadyExists) {
		return fmt.Errorf("make topic %s: %w", usage.QuotaTopic, err)
	}
	return nil
}

// Write implements Writer.
func (c *Client) Write(ctx context.Context, msgs []kafka.Message) error {
	if err := c.writer.WriteMessages(ctx, msgs...); err != nil {
		return fmt.Errorf("write to %s: %w", usage.QuotaTopic, err)
	}
	return nil
}

// Close waits for writes in flight.
func (c *Client) Close() error {
	err := c.writer.Close()
	c.transport.CloseIdleConnections()
	return err
}
