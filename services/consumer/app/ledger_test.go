package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/tollgate-dev/tollgate/pkg/usage"
)

// everyView asks each view for requests and tokens in all; "" if each says want, or less when less is allowed.
func (r *rig) everyView(requests, tokens uint64, orLess bool) string {
	for name, query := range map[string]string{
		"usage_events":   "SELECT count(), toUInt64(sum(input_tokens + output_tokens)) FROM usage_events",
		"usage_minutely": "SELECT sum(requests), toUInt64(sum(total_tokens)) FROM usage_minutely",
		"usage_hourly":   "SELECT sum(requests), toUInt64(sum(total_tokens)) FROM usage_hourly",
		"usage_daily":    "SELECT sum(requests), toUInt64(sum(total_tokens)) FROM usage_daily",
	} {
		var n, sum uint64
		if err := r.ch.QueryRow(context.Background(), query).Scan(&n, &sum); err != nil {
			return fmt.Sprintf("%s: %v", name, err)
		}
		if n > requests || sum > tokens || (!orLess && (n != requests || sum != tokens)) {
			return fmt.Sprintf("%s says %d requests and %d tokens, want %d and %d", name, n, sum, requests, tokens)
		}
	}
	return ""
}

func (r *rig) mustSay(when string, requests, tokens uint64) {
	r.t.Helper()
	if why := r.everyView(requests, tokens, false); why != "" {
		r.t.Errorf("%s: %s", when, why)
	}
}

// Case B88: the same 100 records four times, in the same and in other batches.
func TestRedeliveryCountsOnce(t *testing.T) {
	onBothBrokers(t, func(t *testing.T, r *rig) {
		c := r.start()
		first := family("acme", 100)
		r.produce(first...)
		r.awaitEvents(100)
		r.mustSay("after the first delivery", 100, 1000)
		if err := r.ch.Exec(t.Context(), "SYSTEM STOP MERGES usage_ledger"); err != nil {
			t.Fatal(err)
		}

		watching, stopWatching := context.WithCancel(t.Context())
		var watch sync.WaitGroup
		watch.Go(func() {
			for watching.Err() == nil {
				if why := r.everyView(100, 1000, true); why != "" {
					t.Errorf("at some moment %s", why)
					return
				}
			}
		})
		r.produce(append(append([]kafka.Message{}, first...), first...)...) // twice, one batch
		var other []kafka.Message                                           // another day, another partition, other figures: still the same events
		for i := range 100 {
			rec := record("acme", i)
			rec.Timestamp = usage.At(noon.AddDate(0, 0, 40))
			rec.InputTokens, rec.OrgID = 1000, "other"
			other = append(other, in((i+1)%partitions, rec))
		}
		for i := 0; i < len(other); i += 25 { // in batches of their own
			r.produce(other[i : i+25]...)
			r.awaitCommitted()
		}
		r.awaitCommitted()
		stopWatching()
		watch.Wait()

		if n := c.metric(`tollgate_consumer_records_total{result="stored"}`); n != 400 {
			t.Errorf("%v records came to the ledger, want each of 100 four times: this proves nothing", n)
		}
		r.mustSay("before merging", 100, 1000)
		for _, q := range []string{"SYSTEM START MERGES usage_ledger", "OPTIMIZE TABLE usage_ledger FINAL"} {
			if err := r.ch.Exec(t.Context(), q); err != nil {
				t.Fatal(err)
			}
		}
		if n := r.mustCount("SELECT count() FROM usage_ledger WHERE grain = 'event'"); n != 100 {
			t.Errorf("%d rows after merging, want 100", n)
		}
		r.mustSay("after merging", 100, 1000)
		if n := r.mustCount("SELECT count() FROM usage_events WHERE org_id != 'acme' OR toDate(timestamp) != '2026-05-06'"); n != 0 {
			t.Errorf("%d events are shown as the repeat told them, not as they were first", n)
		}
		c.mustStop()
	})
}

// Case B87: what can't be used goes to the dead letters and holds nothing up.
func TestPoisonMessageGoesToDLQAndDoesNotBlock(t *testing.T) {
	onBothBrokers(t, func(t *testing.T, r *rig) {
		c := r.start()
		valid := string(in(0, record("acme", 1000)).Value)
		bad := []struct {
			value  []byte
			reason string
		}{
			{[]byte("hello"), usage.ReasonNotJSON},
			{[]byte{}, usage.ReasonEmpty},
			{nil, usage.ReasonEmpty},
			{replaced(t, valid, `"schema_version":1`, `"schema_version":99`), usage.ReasonSchemaVersion},
			{replaced(t, valid, `"input_tokens":7`, `"input_tokens":"abc"`), usage.ReasonInvalid},
			{replaced(t, valid, `"org_id":"acme",`, ``), usage.ReasonInvalid},
		}
		var messages []kafka.Message
		for i := range 20 {
			if i == 10 {
				for _, b := range bad {
					messages = append(messages, kafka.Message{Key: []byte("1"), Value: b.value, Headers: []kafka.Header{{Key: "ce_id", Value: []byte("kept")}}})
				}
			}
			messages = append(messages, in(1, record("acme", i)))
		}
		r.produce(messages...)
		r.awaitEvents(20)
		r.awaitCommitted()
		r.mustSay("with poison between them", 20, 200)

		letters := r.deadLetters(len(bad))
		for i, m := range letters {
			h := map[string]string{}
			for _, x := range m.Headers {
				h[x.Key] = string(x.Value)
			}
			want := map[string]string{"reason": bad[i].reason, "topic": r.cfg.Topic, "partition": "1", "offset": strconv.Itoa(10 + i), "ce_id": "kept"}
			for k, v := range want {
				if h[k] != v {
					t.Errorf("dead letter %d: header %s is %q, want %q", i, k, h[k], v)
				}
			}
			if h["error"] == "" || string(m.Key) != "1" || string(m.Value) != string(bad[i].value) {
				t.Errorf("dead letter %d: error %q, key %q, value %q", i, h["error"], m.Key, m.Value)
			}
		}
		for series, want := range map[string]float64{
			`tollgate_consumer_records_total{result="dead_letter"}`:                      6,
			`tollgate_consumer_records_total{result="stored"}`:                           20,
			`tollgate_consumer_dead_letters_total{reason="` + usage.ReasonEmpty + `"}`:   2,
			`tollgate_consumer_dead_letters_total{reason="` + usage.ReasonInvalid + `"}`: 2,
			`tollgate_consumer_dead_letters_total{reason="` + usage.ReasonNotJSON + `"}`: 1,
			`tollgate_consumer_dead_letters_total{reason="unknown_schema_version"}`:      1,
			`tollgate_consumer_dead_letters_total{reason="refused_by_ledger"}`:           0,
		} {
			if got := c.metric(series); got != want {
				t.Errorf("%s is %v, want %v", series, got, want)
			}
		}
	})
}

// deadLetters reads n messages of the dead letters' topic, and makes sure that there are no more.
func (r *rig) deadLetters(n int) (out []kafka.Message) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	client, done := r.client()
	defer done()
	ends, err := client.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{r.cfg.DeadLetterTopic: {kafka.LastOffsetOf(0)}}})
	if err != nil {
		r.t.Fatal(err)
	}
	if got := ends.Topics[r.cfg.DeadLetterTopic][0].LastOffset; got != int64(n) {
		r.t.Fatalf("%d dead letters, want %d", got, n)
	}
	f, err := client.Fetch(ctx, &kafka.FetchRequest{Topic: r.cfg.DeadLetterTopic, Partition: 0, Offset: 0, MinBytes: 1, MaxBytes: 1 << 20, MaxWait: time.Second})
	if err != nil {
		r.t.Fatal(err)
	}
	for {
		rec, err := f.Records.ReadRecord()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			r.t.Fatal(err)
		}
		m := kafka.Message{Offset: rec.Offset, Headers: rec.Headers}
		if rec.Key != nil {
			if m.Key, err = io.ReadAll(rec.Key); err != nil {
				r.t.Fatal(err)
			}
		}
		if rec.Value != nil {
			if m.Value, err = io.ReadAll(rec.Value); err != nil {
				r.t.Fatal(err)
			}
		}
		out = append(out, m)
	}
	if len(out) != n {
		r.t.Fatalf("read %d dead letters, want %d", len(out), n)
	}
	return out
}

func TestLateEventLandsInThePeriodOfItsTimestamp(t *testing.T) {
	onBothBrokers(t, func(t *testing.T, r *rig) {
		r.start()
		r.produce(family("acme", 10)...)
		r.awaitEvents(10)
		late := record("acme", 10)
		late.Timestamp = usage.At(noon.AddDate(0, 0, -3).Add(-time.Millisecond)) // the last of 11 o'clock
		refused := record("acme", 11)
		refused.Timestamp, refused.Outcome, refused.WasRateLimited = late.Timestamp, usage.Rejected, true
		refused.InputTokens, refused.OutputTokens, refused.ReservedTokens, refused.Reservation, refused.Reason, refused.Scope = 0, 0, 0, "", "tpm", "user"
		adjustment := record("acme", 12)
		adjustment.Timestamp, adjustment.Outcome, adjustment.InputTokens, adjustment.OutputTokens = late.Timestamp, usage.Adjustment, -2, -1
		r.produce(in(0, late), in(1, refused), in(2, adjustment))
		r.awaitEvents(13)
		for view, period := range map[string]string{"usage_minutely": "2026-05-03 11:59:00", "usage_hourly": "2026-05-03 11:00:00", "usage_daily": "2026-05-03 00:00:00"} {
			var requests, rejected uint64
			var tokens, input, output int64
			err := r.ch.QueryRow(t.Context(), "SELECT requests, rejected_requests, total_tokens, input_tokens, output_tokens FROM "+view+
				" WHERE period = toDateTime(?, 'UTC') AND org_id = 'acme' AND user_id = 'u1' AND api_key_id = '' AND tier = 'plus' AND model = 'grok-2'", period).
				Scan(&requests, &rejected, &tokens, &input, &output)
			if err != nil {
				t.Errorf("%s at %s: %v", view, period, err)
				continue
			}
			if requests != 1 || rejected != 1 || tokens != 7 || input != 5 || output != 2 {
				t.Errorf("%s at %s: %d requests, %d rejected, %d = %d + %d tokens; want 1, 1, 7 = 5 + 2", view, period, requests, rejected, tokens, input, output)
			}
		}
		n := r.mustCount("SELECT sum(requests) FROM rejections_hourly WHERE period = toDateTime('2026-05-03 11:00:00', 'UTC') AND tier = 'plus' AND reason = 'tpm' AND scope = 'user'")
		if n != 1 {
			t.Errorf("rejections_hourly says %d, want 1", n)
		}
	})
}

// Every field of a record arrives in the ledger as it was.
func TestRecordArrivesWhole(t *testing.T) {
	r := newRig(t, embeddedBroker(t), newDatabase(t))
	r.start()
	used := record("acme", 0)
	used.APIKeyID, used.CachedInputTokens, used.Estimated = "k/1@x", 4, true
	used.InputTokens = usage.MaxTokens - 3
	used.RequestedModel, used.Instance, used.Region = "grok-2-large", "i\x00'\"é", "eu-1"
	refused := record("acme", 1)
	refused.InputTokens, refused.OutputTokens, refused.ReservedTokens, refused.Reservation = 0, 0, 0, ""
	refused.WasRateLimited, refused.Outcome, refused.Reason, refused.Scope = true, usage.Rejected, "tpd", "org"
	for i, want := range []usage.Record{used, refused} {
		r.produce(in(2, want))
		r.awaitEvents(uint64(i + 1))
		var got usage.Record
		var version uint16
		var at time.Time
		var outcome, reservation, topic string
		var partition uint16
		var offset uint64
		err := r.ch.QueryRow(t.Context(), `SELECT event_id, schema_version, user_id, api_key_id, org_id, tier, request_id, requested_model, model, input_tokens, output_tokens,
			cached_input_tokens, reserved_tokens, latency_ms, timestamp, was_rate_limited, reason, scope, outcome, reservation, estimated, region, instance,
			kafka_topic, kafka_partition, kafka_offset FROM usage_events WHERE event_id = ? AND abs(dateDiff('second', ingested_at, now())) < 60`, want.EventID).
			Scan(&got.EventID, &version, &got.UserID, &got.APIKeyID, &got.OrgID, &got.Tier, &got.RequestID, &got.RequestedModel, &got.Model, &got.InputTokens, &got.OutputTokens,
				&got.CachedInputTokens, &got.ReservedTokens, &got.LatencyMS, &at, &got.WasRateLimited, &got.Reason, &got.Scope, &outcome, &reservation, &got.Estimated, &got.Region,
				&got.Instance, &topic, &partition, &offset)
		if err != nil {
			t.Fatal(err)
		}
		got.SchemaVersion, got.Timestamp, got.Outcome, got.Reservation = int(version), usage.At(at), usage.Outcome(outcome), usage.Reservation(reservation)
		if got != want {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
		if topic != r.cfg.Topic || partition != 2 || offset != uint64(i) {
			t.Errorf("from %s/%d/%d", topic, partition, offset)
		}
	}
}
