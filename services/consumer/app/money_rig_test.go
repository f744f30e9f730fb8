package app

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/segmentio/kafka-go"
	"github.com/shopspring/decimal"

	embeddedkafka "github.com/tollgate-dev/tollgate/pkg/embedded/kafka"
	"github.com/tollgate-dev/tollgate/pkg/price"
	"github.com/tollgate-dev/tollgate/pkg/testkit/stores"
	"github.com/tollgate-dev/tollgate/pkg/usage"
)

// newMoneyRig is a rig whose broker has the topic of changes, too.
func newMoneyRig(t *testing.T) *rig {
	t.Helper()
	s := stores.Kafka(t, embeddedkafka.Topic{Name: usage.Topic, Partitions: partitions}, embeddedkafka.Topic{Name: usage.DeadLetterTopic, Partitions: 1},
		embeddedkafka.Topic{Name: usage.QuotaTopic, Partitions: partitions})
	return newRig(t, broker{s.Brokers(), usage.Topic, usage.DeadLetterTopic}, stores.ClickHouse(t).DSN)
}

// tell appends messages to the topic of changes.
func (r *rig) tell(messages ...kafka.Message) {
	r.t.Helper()
	transport := &kafka.Transport{}
	defer transport.CloseIdleConnections()
	w := &kafka.Writer{Addr: kafka.TCP(r.cfg.KafkaBrokers...), Transport: transport, Topic: usage.QuotaTopic, RequiredAcks: kafka.RequireAll,
		BatchTimeout: time.Millisecond, Balancer: &kafka.Hash{}}
	defer w.Close()
	if err := w.WriteMessages(r.t.Context(), messages...); err != nil {
		r.t.Fatalf("tell: %v", err)
	}
}

func changed(eventType, key string, value any) kafka.Message {
	b, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return kafka.Message{Key: []byte(key), Value: b, Headers: []kafka.Header{{Key: "ce_type", Value: []byte(eventType)}}}
}

func instantOf(text string) time.Time {
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		panic(err)
	}
	return at
}

// costs is the event of a model's price in dollars from an instant on: of input, cached input and output tokens.
func costs(model, from string, version int64, input, cached, output string) kafka.Message {
	at := instantOf(from)
	return changed(price.EventType, price.Name(model, at), price.Changed{EventID: uuid.New(), SchemaVersion: 1, Model: model, ValidFrom: usage.At(at), Version: version,
		ChangedAt: usage.At(noon), Actor: "admin", After: &price.Amounts{Currency: "USD", Input: input, CachedInput: cached, Output: output}})
}

// lives is the event of an org's time zone; "" deletes the org's pool.
func lives(org, zone string, version int64) kafka.Message {
	after := map[string]any{"time_zone": zone}
	if zone == "" {
		after = nil
	}
	return changed(usage.QuotaEventType, "org:"+org, map[string]any{"schema_version": 1, "subject": "org:" + org, "version": version,
		"changed_at": usage.At(noon), "after": after})
}

// used is an event at an instant.
func used(org, model, at string, input, cached, output int64) usage.Record {
	r := record(org, 0)
	r.EventID, r.RequestID = uuid.New(), uuid.New()
	r.Model, r.RequestedModel, r.Timestamp = model, model, usage.At(instantOf(at))
	r.InputTokens, r.CachedInputTokens, r.OutputTokens = input, cached, output
	return r
}

// corrects is a correction of an event.
func corrects(of usage.Record, input, cached, output int64) usage.Record {
	r := of
	r.EventID, r.RequestID, r.CorrectsEventID = uuid.New(), uuid.New(), of.EventID
	r.Outcome, r.ReservedTokens, r.LatencyMS = usage.Adjustment, 0, 0
	r.InputTokens, r.CachedInputTokens, r.OutputTokens = input, cached, output
	return r
}

// send appends events to the log.
func (r *rig) send(records ...usage.Record) {
	r.t.Helper()
	messages := make([]kafka.Message, len(records))
	for i, rec := range records {
		messages[i] = in(i%partitions, rec)
	}
	r.produce(messages...)
}

// awaitRows waits until a query gives a number.
func (r *rig) awaitRows(n uint64, query string) {
	r.t.Helper()
	r.eventually(func() string {
		if got, err := r.count(query); err != nil || got != n {
			return fmt.Sprintf("%s: %d, want %d (%v)", query, got, n, err)
		}
		return ""
	})
}

// say reads one line of text a row.
func (r *rig) say(query string, args ...any) (out []string) {
	r.t.Helper()
	rows, err := r.ch.Query(r.t.Context(), query, args...)
	if err != nil {
		r.t.Fatalf("%s: %v", query, err)
	}
	defer rows.Close()
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			r.t.Fatal(err)
		}
		out = append(out, line)
	}
	if err := rows.Err(); err != nil {
		r.t.Fatal(err)
	}
	return out
}

const (
	costLines    = `SELECT concat(toString(day), ' ', org_id, ' ', model, ' ', toString(input_tokens), ' ', toString(cached_input_tokens), ' ', toString(output_tokens), ' ', ifNull(toString(cost), 'unpriced'), ' ', currency) AS line FROM cost_daily ORDER BY line`
	invoiceLines = `SELECT concat(toString(month), ' ', org_id, ' ', model, ' ', toString(input_tokens), ' ', toString(output_tokens), ' at ', ifNull(toString(input_per_million), '?'), ' ', ifNull(toString(cached_input_per_million), '?'), ' ', ifNull(toString(output_per_million), '?'), ' = ', ifNull(toString(amount), 'unpriced'), ' ', currency) AS line FROM invoice_lines ORDER BY line`
)

func dec(text string) decimal.Decimal { return decimal.RequireFromString(text) }
