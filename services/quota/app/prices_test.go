package app

import (
	"bytes"
	"net/http"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/segmentio/kafka-go"

	"github.com/tollgate-dev/tollgate/pkg/pgquota"
	"github.com/tollgate-dev/tollgate/pkg/price"
	"github.com/tollgate-dev/tollgate/pkg/testkit/stores"
)

// Each price goes to Kafka under a key of its own, so that compaction keeps the latest of every one, and as its schema says.
func TestPricesReachKafkaEachUnderItsOwnKey(t *testing.T) {
	server, broker := stores.Redis(t), stores.Kafka(t)
	s := start(t, stores.Postgres(t), server.URL(), broker.Addr)
	for _, body := range []string{
		`{"input_per_million":"3","output_per_million":"15","valid_from":"2026-01-01T00:00:00Z"}`,
		`{"input_per_million":"2","output_per_million":"10","valid_from":"2026-07-01T00:00:00.5Z"}`,
		`{"input_per_million":"4","output_per_million":"15","valid_from":"2026-01-01T00:00:00Z","reason":"typing error"}`,
	} {
		if status, v := s.call(http.MethodPut, "/internal/prices/grok-2", body); status != http.StatusOK {
			t.Fatal(status, v)
		}
	}
	schema, last, n := eventSchema(t, "price-changed.v1"), map[string]string{}, 0
	events(t, broker.Addr, func(m kafka.Message) bool {
		value, err := jsonschema.UnmarshalJSON(bytes.NewReader(m.Value))
		if err == nil {
			err = schema.Validate(value)
		}
		if err != nil {
			t.Errorf("%s breaks the schema: %v", m.Value, err)
		}
		c, p, err := price.Decode(m.Value)
		if err != nil {
			t.Fatal(err)
		}
		headers := map[string]string{}
		for _, h := range m.Headers {
			headers[h.Key] = string(h.Value)
		}
		name := price.Name(p.Model, p.ValidFrom)
		if string(m.Key) != name || headers["ce_type"] != price.EventType || headers["ce_subject"] != name || headers["ce_id"] != c.EventID.String() ||
			c.EventID != pgquota.EventID(name, c.Version) {
			t.Errorf("key %s, headers %v of %s", m.Key, headers, m.Value)
		}
		last[name] = p.Input.String()
		n++
		return n == 3
	})
	if len(last) != 2 || last["price:grok-2:2026-01-01T00:00:00.000Z"] != "4" || last["price:grok-2:2026-07-01T00:00:00.500Z"] != "2" {
		t.Errorf("%v", last)
	}
}
