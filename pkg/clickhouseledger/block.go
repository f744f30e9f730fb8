package clickhouseledger

import (
	"encoding/binary"
	"time"

	"github.com/ClickHouse/ch-go/proto"
	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/usage"
)

// grain is the column of this name: what a row is.
type grain int8

// As in the table's Enum8.
const (
	foldRow grain = iota
	eventRow
	minute
	quarter
	day
	refusals
)

// grainColumn speaks of an Enum8 by number.
type grainColumn struct{ proto.ColInt8 }

func (grainColumn) Type() proto.ColumnType {
	return "Enum8('fold' = 0, 'event' = 1, 'minute' = 2, 'quarter' = 3, 'day' = 4, 'refusals' = 5)"
}

// block is a block of rows of usage_ledger, column by column.
type block struct {
	grain                      grainColumn
	eventID                    proto.ColUUID
	org, user, key             proto.ColStr
	period                     proto.ColDateTime
	tier, model, reason, scope *words
	guess                      proto.ColBool
	events, requests, rejected proto.ColInt64
	input, output, cached      proto.ColInt128
	schema                     proto.ColUInt16
	requestID                  proto.ColUUID
	requestedModel             *words
	reserved, latency          proto.ColInt64
	timestamp                  proto.ColDateTime64
	refused                    proto.ColBool
	outcome, reservation       *words
	estimated                  proto.ColBool
	region, instance           *words
	corrects                   proto.ColUUID
	topic                      *words
	partition                  proto.ColUInt16
	offset                     proto.ColUInt64
	ingested                   proto.ColDateTime64
	generation                 proto.ColUInt64
}

func newBlock() *block {
	b := &block{tier: newWords(), model: newWords(), reason: newWords(), scope: newWords(), requestedModel: newWords(), outcome: newWords(),
		reservation: newWords(), region: newWords(), instance: newWords(), topic: newWords()}
	b.period.Location = time.UTC
	b.timestamp.WithPrecision(proto.PrecisionMilli).WithLocation(time.UTC)
	b.ingested.WithPrecision(proto.PrecisionMilli).WithLocation(time.UTC)
	return b
}

// column is one of the block's, for sending and for receiving.
type column struct {
	name string
	data proto.Column
}

func (b *block) columns() []column {
	return []column{{"grain", &b.grain}, {"event_id", &b.eventID}, {"org_id", &b.org}, {"period", &b.period}, {"user_id", &b.user},
		{"api_key_id", &b.key}, {"tier", b.tier}, {"model", b.model}, {"reason", b.reason}, {"scope", b.scope}, {"guess", &b.guess},
		{"events", &b.events}, {"requests", &b.requests}, {"rejected_requests", &b.rejected}, {"input_tokens", &b.input},
		{"output_tokens", &b.output}, {"cached_input_tokens", &b.cached}, {"schema_version", &b.schema}, {"request_id", &b.requestID},
		{"requested_model", b.requestedModel}, {"reserved_tokens", &b.reserved}, {"latency_ms", &b.latency}, {"timestamp", &b.timestamp},
		{"was_rate_limited", &b.refused}, {"outcome", b.outcome}, {"reservation", b.reservation}, {"estimated", &b.estimated},
		{"region", b.region}, {"instance", b.instance}, {"corrects_event_id", &b.corrects}, {"kafka_topic", b.topic},
		{"kafka_partition", &b.partition}, {"kafka_offset", &b.offset}, {"ingested_at", &b.ingested}, {"generation", &b.generation}}
}

func (b *block) rows() proto.Input {
	var in proto.Input
	for _, c := range b.columns() {
		in = append(in, proto.InputColumn{Name: c.name, Data: c.data})
	}
	return in
}

func (b *block) reset() {
	for _, c := range b.columns() {
		c.data.Reset()
	}
}

// head is what every row has.
func (b *block) head(g grain, id uuid.UUID, period uint32, v sum, look look) {
	b.grain.Append(int8(g))
	b.eventID.Append(id)
	b.period.AppendRaw(proto.DateTime(period))
	b.events.Append(v.events)
	b.requests.Append(v.requests)
	b.rejected.Append(v.rejected)
	b.input.Append(v.input)
	b.output.Append(v.output)
	b.cached.Append(v.cached)
	b.ingested.AppendRaw(look.at)
	b.generation.Append(look.generation)
}

// addEvent adds an event, or the row that takes it back if n is -1.
func (b *block) addEvent(e *Event, n int64, look look) {
	b.head(eventRow, e.EventID, 0, of(e, n), look)
	b.org.Append(e.OrgID)
	b.user.Append(e.UserID)
	b.key.Append(e.APIKeyID)
	b.tier.Append(e.Tier)
	b.model.Append(e.Model)
	b.reason.Append(e.Reason)
	b.scope.Append(e.Scope)
	b.guess.Append(e.guess())
	b.schema.Append(uint16(e.SchemaVersion))
	b.requestID.Append(e.RequestID)
	b.requestedModel.Append(e.RequestedModel)
	b.reserved.Append(e.ReservedTokens)
	b.latency.Append(e.LatencyMS)
	b.timestamp.AppendRaw(proto.DateTime64(time.Time(e.Timestamp).UnixMilli()))
	b.refused.Append(e.WasRateLimited)
	b.outcome.Append(string(e.Outcome))
	b.reservation.Append(string(e.Reservation))
	b.estimated.Append(e.Estimated)
	b.region.Append(e.Region)
	b.instance.Append(e.Instance)
	b.corrects.Append(e.CorrectsEventID)
	b.topic.Append(e.Topic)
	b.partition.Append(uint16(e.Partition))
	b.offset.Append(uint64(e.Offset))
}

// addSums adds the rows of all groups that change.
func (b *block) addSums(s *sums, look look) {
	n := 0
	for i, at := range s.slotList {
		v := s.sumList[i]
		if v == (sum{}) {
			continue
		}
		var p payer
		var r refusal
		if at.grain == refusals {
			r = s.refuseList[at.who]
			p.tier = r.tier
		} else {
			p = s.payerList[at.who]
		}
		b.head(at.grain, uuid.Nil, at.period, v, look)
		b.org.Append(p.org)
		b.user.Append(p.user)
		b.key.Append(p.key)
		b.tier.Append(p.tier)
		b.model.Append(p.model)
		b.reason.Append(r.reason)
		b.scope.Append(r.scope)
		b.requestID.Append(uuid.Nil)
		n++
	}
	b.noEvents(n)
}

// addFold adds a fold's row, or the row that takes it back if n is -1.
func (b *block) addFold(fold uint64, mark uuid.UUID, n int64, look look) {
	b.head(foldRow, foldID(fold), 0, sum{events: n}, look)
	for _, s := range []*proto.ColStr{&b.org, &b.user, &b.key} {
		s.Append("")
	}
	for _, w := range []*words{b.tier, b.model, b.reason, b.scope} {
		w.Append("")
	}
	b.requestID.Append(mark)
	b.noEvents(1)
}

// noEvents fills the columns that only events have, for n rows.
func (b *block) noEvents(n int) {
	b.corrects = append(b.corrects, make(proto.ColUUID, n)...)
	for _, c := range []*proto.ColBool{&b.guess, &b.refused, &b.estimated} {
		*c = append(*c, make(proto.ColBool, n)...)
	}
	for _, w := range []*words{b.requestedModel, b.outcome, b.reservation, b.region, b.instance, b.topic} {
		w.AppendEmpty(n)
	}
	b.schema = append(b.schema, make(proto.ColUInt16, n)...)
	b.reserved = append(b.reserved, make(proto.ColInt64, n)...)
	b.latency = append(b.latency, make(proto.ColInt64, n)...)
	b.timestamp.Data = append(b.timestamp.Data, make([]proto.DateTime64, n)...)
	b.partition = append(b.partition, make(proto.ColUInt16, n)...)
	b.offset = append(b.offset, make(proto.ColUInt64, n)...)
}

// event reads a row back, as addEvent wrote it: an event's own tokens fit in 64 bits.
func (b *block) event(i int) Event {
	return Event{Record: usage.Record{EventID: b.eventID.Row(i), SchemaVersion: int(b.schema.Row(i)), UserID: b.user.Row(i), APIKeyID: b.key.Row(i), OrgID: b.org.Row(i),
		Tier: b.tier.Row(i), RequestID: b.requestID.Row(i), RequestedModel: b.requestedModel.Row(i), Model: b.model.Row(i), InputTokens: int64(b.input.Row(i).Low),
		OutputTokens: int64(b.output.Row(i).Low), CachedInputTokens: int64(b.cached.Row(i).Low), ReservedTokens: b.reserved.Row(i), LatencyMS: b.latency.Row(i),
		Timestamp: usage.At(b.timestamp.Row(i)), WasRateLimited: b.refused.Row(i), Reason: b.reason.Row(i), Scope: b.scope.Row(i),
		Outcome: usage.Outcome(b.outcome.Row(i)), Reservation: usage.Reservation(b.reservation.Row(i)), Estimated: b.estimated.Row(i),
		Region: b.region.Row(i), Instance: b.instance.Row(i), CorrectsEventID: b.corrects.Row(i)},
		Topic: b.topic.Row(i), Partition: int(b.partition.Row(i)), Offset: int64(b.offset.Row(i))}
}

// foldID is a fold's number as an event_id. ClickHouse compares the second half of a UUID first, as one number.
func foldID(n uint64) (id uuid.UUID) {
	binary.BigEndian.PutUint64(id[8:], n)
	return id
}

func foldNumber(id uuid.UUID) uint64 { return binary.BigEndian.Uint64(id[8:]) }
