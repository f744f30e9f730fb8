package reconcile

import (
	"cmp"
	"encoding/binary"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/usage"
)

// Place is where a message lies in the log.
type Place struct {
	Partition int   `json:"partition"`
	Offset    int64 `json:"offset"`
}

// Event is what is compared: a usable message of the log, or a row of usage_events.
type Event struct {
	ID                    uuid.UUID
	Place                 Place
	AtMillis              int64  // Unix milliseconds of the event's timestamp
	Input, Output, Cached int64  // tokens
	Rest                  uint64 // a digest of Rest
	Rejected              bool
	Adjustment            bool
	Expired               bool
}

// Rest is what else an event must agree in: who pays, by what, how it ended, what it belongs to and what was measured.
type Rest struct {
	UserID, APIKeyID, OrgID, Tier, RequestedModel, Model, Reason, Scope, Outcome, Reservation, Region, Instance string

	RequestID, CorrectsEventID uuid.UUID
	ReservedTokens, LatencyMS  int64
	SchemaVersion              int
	Estimated                  bool
}

// digest is 64 bits of the rest; buf is scratch. Each text is preceded by its length, so that none can pass for another.
func (r *Rest) digest(buf []byte) (digest uint64, scratch []byte) {
	buf = buf[:0]
	for _, s := range [...]string{r.UserID, r.APIKeyID, r.OrgID, r.Tier, r.RequestedModel, r.Model, r.Reason, r.Scope, r.Outcome, r.Reservation, r.Region, r.Instance} {
		buf = binary.AppendUvarint(buf, uint64(len(s)))
		buf = append(buf, s...)
	}
	buf = append(append(buf, r.RequestID[:]...), r.CorrectsEventID[:]...)
	for _, n := range [...]int64{r.ReservedTokens, r.LatencyMS, int64(r.SchemaVersion)} {
		buf = binary.AppendVarint(buf, n)
	}
	if r.Estimated {
		buf = append(buf, 1)
	}
	return xxhash.Sum64(buf), buf
}

// FromRecord is the event that a message bears.
func FromRecord(r *usage.Record, at Place) Event {
	rest := Rest{r.UserID, r.APIKeyID, r.OrgID, r.Tier, r.RequestedModel, r.Model, r.Reason, r.Scope, string(r.Outcome), string(r.Reservation), r.Region, r.Instance,
		r.RequestID, r.CorrectsEventID, r.ReservedTokens, r.LatencyMS, r.SchemaVersion, r.Estimated}
	e := Event{ID: r.EventID, Place: at, AtMillis: time.Time(r.Timestamp).UnixMilli(), Input: r.InputTokens, Output: r.OutputTokens, Cached: r.CachedInputTokens,
		Rejected: r.WasRateLimited}
	e.SetRest(&rest, make([]byte, 0, 256))
	return e
}

// SetRest sets what follows from the rest. buf is scratch, and is given back for the next event.
func (e *Event) SetRest(r *Rest, buf []byte) []byte {
	e.Rest, buf = r.digest(buf)
	e.Adjustment, e.Expired = r.Outcome == string(usage.Adjustment), r.Outcome == string(usage.Expired)
	return buf
}

// stands tells whether e comes before another message of the event: what is no guess does, then the one first by offset, then partition.
func (e *Event) stands(against *Event) bool {
	if e.Expired != against.Expired {
		return against.Expired
	}
	return cmp.Or(cmp.Compare(e.Place.Offset, against.Place.Offset), cmp.Compare(e.Place.Partition, against.Place.Partition)) < 0
}

// hour is the start of the event's hour in Unix seconds.
func (e *Event) hour() int64 { return floor(e.AtMillis, 3_600_000) / 1000 }

func floor(n, unit int64) int64 {
	if m := n % unit; m < 0 {
		return n - m - unit
	}
	return n - n%unit
}

// Figures are sums over distinct events. Tokens are counts.
type Figures struct {
	Events            int64 `json:"events"`
	Requests          int64 `json:"requests"` // admitted ones
	RejectedRequests  int64 `json:"rejected_requests"`
	InputTokens       int64 `json:"input_tokens"`
	OutputTokens      int64 `json:"output_tokens"`
	CachedInputTokens int64 `json:"cached_input_tokens"`
}

// add counts an event. fits is false if a sum of tokens has not fitted: then it is wrong.
func (f *Figures) add(e *Event) (fits bool) {
	g := Figures{Events: 1, InputTokens: e.Input, OutputTokens: e.Output, CachedInputTokens: e.Cached}
	switch {
	case e.Rejected:
		g.RejectedRequests = 1
	case !e.Adjustment:
		g.Requests = 1
	}
	return f.plus(g)
}

// plus adds g. fits is as of add.
func (f *Figures) plus(g Figures) (fits bool) {
	f.Events += g.Events
	f.Requests += g.Requests
	f.RejectedRequests += g.RejectedRequests
	fits = true
	for _, t := range [...]struct {
		to *int64
		n  int64
	}{{&f.InputTokens, g.InputTokens}, {&f.OutputTokens, g.OutputTokens}, {&f.CachedInputTokens, g.CachedInputTokens}} {
		was := *t.to
		*t.to += t.n
		fits = fits && (*t.to >= was) == (t.n >= 0)
	}
	return fits
}

// figure is one of Figures by its name.
type figure struct {
	name string
	of   func(*Figures) int64
}

var figures = [...]figure{
	{"events", func(f *Figures) int64 { return f.Events }},
	{"requests", func(f *Figures) int64 { return f.Requests }},
	{"rejected_requests", func(f *Figures) int64 { return f.RejectedRequests }},
	{"input_tokens", func(f *Figures) int64 { return f.InputTokens }},
	{"output_tokens", func(f *Figures) int64 { return f.OutputTokens }},
	{"cached_input_tokens", func(f *Figures) int64 { return f.CachedInputTokens }},
}
