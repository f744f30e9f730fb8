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
	Texts                 uint64 // a digest of Texts
	Rejected              bool
	Adjustment            bool
	Expired               bool
}

// Texts is what else an event must agree in: who pays, by what, how it ended.
type Texts struct {
	UserID, APIKeyID, OrgID, Tier, Model, Reason, Scope, Outcome string
}

// digest is 64 bits of the texts; buf is scratch. Each text is preceded by its length, so that none can pass for another.
func (t *Texts) digest(buf []byte) (digest uint64, scratch []byte) {
	buf = buf[:0]
	for _, s := range [...]string{t.UserID, t.APIKeyID, t.OrgID, t.Tier, t.Model, t.Reason, t.Scope, t.Outcome} {
		buf = binary.AppendUvarint(buf, uint64(len(s)))
		buf = append(buf, s...)
	}
	return xxhash.Sum64(buf), buf
}

// FromRecord is the event that a message bears.
func FromRecord(r *usage.Record, at Place) Event {
	t := Texts{r.UserID, r.APIKeyID, r.OrgID, r.Tier, r.Model, r.Reason, r.Scope, string(r.Outcome)}
	e := Event{ID: r.EventID, Place: at, AtMillis: time.Time(r.Timestamp).UnixMilli(), Input: r.InputTokens, Output: r.OutputTokens, Cached: r.CachedInputTokens,
		Rejected: r.WasRateLimited}
	e.SetTexts(&t, make([]byte, 0, 128))
	return e
}

// SetTexts sets what follows from the texts. buf is scratch, and is given back for the next event.
func (e *Event) SetTexts(t *Texts, buf []byte) []byte {
	e.Texts, buf = t.digest(buf)
	e.Adjustment, e.Expired = t.Outcome == string(usage.Adjustment), t.Outcome == string(usage.Expired)
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

func (f *Figures) add(e *Event) {
	f.Events++
	switch {
	case e.Rejected:
		f.RejectedRequests++
	case !e.Adjustment:
		f.Requests++
	}
	f.InputTokens += e.Input
	f.OutputTokens += e.Output
	f.CachedInputTokens += e.Cached
}

func (f *Figures) plus(g Figures) {
	f.Events += g.Events
	f.Requests += g.Requests
	f.RejectedRequests += g.RejectedRequests
	f.InputTokens += g.InputTokens
	f.OutputTokens += g.OutputTokens
	f.CachedInputTokens += g.CachedInputTokens
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
