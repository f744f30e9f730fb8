package clickhouseledger

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"
	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/usage"
)

var benchBatch = flag.Int("batch", 10_000, "events in a batch of the benchmarks")

// traffic makes the usage of an hour's time, in order: 2,000 requests a second by `users` users of 50 orgs, of whom some do much more
// than others, on four models. Every 20th request is refused.
type traffic struct {
	at    time.Time
	users int
	n     int
	zipf  *rand.Zipf
	rng   *rand.Rand
	ids   func(at time.Time) uuid.UUID
}

func newTraffic(users int) *traffic {
	rng := rand.New(rand.NewPCG(1, 2))
	tr := &traffic{at: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), users: users, rng: rng}
	tr.ids = func(at time.Time) uuid.UUID { // UUIDv7
		var id uuid.UUID
		binary.BigEndian.PutUint64(id[:8], uint64(at.UnixMilli())<<16|0x7000|rng.Uint64N(1<<12))
		binary.BigEndian.PutUint64(id[8:], 1<<63|rng.Uint64N(1<<62))
		return id
	}
	if users > 0 {
		tr.zipf = rand.NewZipf(rng, 1.05, 20, uint64(users-1))
	}
	return tr
}

// next makes a batch. With no users at all each request has a user of its own.
func (tr *traffic) next(n int) []Event {
	out := make([]Event, n)
	for i := range out {
		user := uint64(tr.n)
		if tr.zipf != nil {
			user = tr.zipf.Uint64()
		}
		r := usage.Record{SchemaVersion: 1, UserID: fmt.Sprintf("user-%06d", user), OrgID: fmt.Sprintf("org-%02d", user%50), Tier: []string{"free", "plus", "api", "enterprise"}[user%4],
			RequestID: tr.ids(tr.at), Model: []string{"grok-2", "grok-2-mini", "llama-3.1-70b", "embed-1"}[tr.rng.IntN(4)],
			InputTokens: tr.rng.Int64N(4000), OutputTokens: tr.rng.Int64N(1500), ReservedTokens: 6000, LatencyMS: tr.rng.Int64N(9000), Timestamp: usage.At(tr.at),
			Outcome: usage.Completed, Reservation: usage.Held, Region: "eu-west", Instance: fmt.Sprintf("enforcement-%d", tr.n%3)}
		kind := usage.KindUsage
		if tr.n%20 == 0 {
			r.InputTokens, r.OutputTokens, r.ReservedTokens, r.WasRateLimited, r.Reason, r.Scope, r.Outcome, r.Reservation = 0, 0, 0, true, "tpm", "user", usage.Rejected, ""
			kind = usage.KindRejection
		}
		r.RequestedModel = r.Model
		r.EventID = usage.EventID(subject.Subject{Kind: subject.User, ID: r.UserID}, r.RequestID, kind)
		out[i] = Event{Record: r, Topic: usage.Topic, Partition: int(user % 12), Offset: int64(tr.n / 12)}
		tr.n++
		tr.at = tr.at.Add(500 * time.Microsecond)
	}
	return out
}

const plainTable = `CREATE TABLE plain (event_id UUID, schema_version UInt16, user_id String, api_key_id String, org_id String, tier LowCardinality(String), request_id UUID,
	requested_model LowCardinality(String), model LowCardinality(String), input_tokens Int64, output_tokens Int64, cached_input_tokens Int64, reserved_tokens Int64,
	latency_ms Int64, timestamp DateTime64(3, 'UTC'), was_rate_limited Bool, reason LowCardinality(String), scope LowCardinality(String), outcome LowCardinality(String),
	reservation LowCardinality(String), estimated Bool, region LowCardinality(String), instance LowCardinality(String), corrects_event_id UUID,
	kafka_topic LowCardinality(String), kafka_partition UInt16, kafka_offset UInt64) ENGINE = MergeTree ORDER BY event_id`

const plainInsert = `INSERT INTO plain (event_id, schema_version, user_id, api_key_id, org_id, tier, request_id, requested_model, model, input_tokens, output_tokens, cached_input_tokens,
	reserved_tokens, latency_ms, timestamp, was_rate_limited, reason, scope, outcome, reservation, estimated, region, instance, corrects_event_id, kafka_topic, kafka_partition, kafka_offset)`

// plain stores events with a plain loop over PrepareBatch: the yardstick.
func plain(b *testing.B, conn driver.Conn, events []Event) {
	b.Helper()
	batch, err := conn.PrepareBatch(context.Background(), plainInsert)
	if err != nil {
		b.Fatal(err)
	}
	for i := range events {
		e := &events[i]
		err := batch.Append(e.EventID, uint16(e.SchemaVersion), e.UserID, e.APIKeyID, e.OrgID, e.Tier, e.RequestID, e.RequestedModel, e.Model, e.InputTokens, e.OutputTokens,
			e.CachedInputTokens, e.ReservedTokens, e.LatencyMS, time.Time(e.Timestamp), e.WasRateLimited, e.Reason, e.Scope, string(e.Outcome), string(e.Reservation),
			e.Estimated, e.Region, e.Instance, e.CorrectsEventID, e.Topic, uint16(e.Partition), uint64(e.Offset))
		if err != nil {
			b.Fatal(err)
		}
	}
	if err := batch.Send(); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkLoad stores the same batches in turn with a plain loop and with Store, on the same server, and tells both rates and
// their ratio. Run it with -benchtime=50x or so: one iteration is a batch (-batch) each way.
func BenchmarkLoad(b *testing.B) {
	for name, users := range map[string]int{"5000 users": 5000, "each its own user": 0} {
		b.Run(name, func(b *testing.B) {
			dsn, db := migrated(b)
			o, err := Options(dsn)
			if err != nil {
				b.Fatal(err)
			}
			conn, err := clickhouse.Open(o)
			if err != nil {
				b.Fatal(err)
			}
			defer conn.Close()
			exec(b, db, plainTable)
			l, tr := writer(b, dsn), newTraffic(users)
			var kept, simple time.Duration
			n := 0
			for b.Loop() {
				events := tr.next(*benchBatch)
				began := time.Now()
				plain(b, conn, events)
				simple += time.Since(began)
				began = time.Now()
				if s, err := l.Store(context.Background(), events); err != nil || s.Added != len(events) {
					b.Fatal(s, err)
				}
				kept += time.Since(began)
				n += len(events)
			}
			b.ReportMetric(float64(n)/kept.Seconds(), "ledger-events/s")
			b.ReportMetric(float64(n)/simple.Seconds(), "plain-events/s")
			b.ReportMetric(simple.Seconds()/kept.Seconds(), "ratio")
		})
	}
}
