package clickhouseledger

import (
	"math/bits"
	"time"

	"github.com/ClickHouse/ch-go/proto"
	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/usage"
)

// Event is a usage record and its place in the log.
type Event struct {
	usage.Record
	Topic     string
	Partition int
	Offset    int64
}

// guess tells whether the event gives way to any other outcome of the same event_id.
func (e *Event) guess() bool { return e.Outcome == usage.Expired }

// standing picks, of a batch, the event that stands for each event_id: the first that is no guess, else the first. It gives their places
// in the batch, in order of the ids' first appearance.
func standing(events []Event) []int {
	seen := make(map[uuid.UUID]int, len(events))
	picked := make([]int, 0, len(events))
	for i := range events {
		at, repeated := seen[events[i].EventID]
		switch {
		case !repeated:
			seen[events[i].EventID] = len(picked)
			picked = append(picked, i)
		case events[picked[at]].guess() && !events[i].guess():
			picked[at] = i
		}
	}
	return picked
}

// payer is what the sums of minutes, quarters and days tell apart, but for the period.
type payer struct{ org, user, key, tier, model string }

// refusal is what the sums of refusals tell apart, but for the hour.
type refusal struct{ tier, reason, scope string }

// slot is one row of sums. who is a place in the list of payers or of refusals.
type slot struct {
	grain  grain
	period uint32 // Unix seconds
	who    int32
}

// sum is what a row adds to a group. Tokens are counts. One event may use 2^53 - 1 of them, so that the sums of a thousand do not fit in 64 bits.
type sum struct {
	events, requests, rejected int64
	input, output, cached      proto.Int128
}

// wide is n in 128 bits, in two's complement.
func wide(n int64) proto.Int128 { return proto.Int128{Low: uint64(n), High: uint64(n >> 63)} }

func plus(a, b proto.Int128) (c proto.Int128) {
	var carry uint64
	c.Low, carry = bits.Add64(a.Low, b.Low, 0)
	c.High, _ = bits.Add64(a.High, b.High, carry)
	return c
}

// sums collects the changes that events mean for all groups.
type sums struct {
	payers     map[payer]int32
	payerList  []payer
	recent     [][3]int32 // of each payer: the places of the minute, quarter and day that it was last added to
	refusals   map[refusal]int32
	refuseList []refusal
	slots      map[slot]int32
	slotList   []slot
	sumList    []sum
}

func (s *sums) reset() {
	if s.slots == nil {
		s.payers, s.refusals, s.slots = map[payer]int32{}, map[refusal]int32{}, map[slot]int32{}
	}
	clear(s.payers)
	clear(s.refusals)
	clear(s.slots)
	s.payerList, s.recent, s.refuseList, s.slotList, s.sumList = s.payerList[:0], s.recent[:0], s.refuseList[:0], s.slotList[:0], s.sumList[:0]
}

// of tells what one event counts for, n times: 1 or -1.
func of(e *Event, n int64) sum {
	v := sum{events: n, input: wide(n * e.InputTokens), output: wide(n * e.OutputTokens), cached: wide(n * e.CachedInputTokens)}
	switch {
	case e.WasRateLimited:
		v.rejected = n
	case e.Outcome != usage.Adjustment:
		v.requests = n
	}
	return v
}

// add counts an event n times, 1 or -1.
func (s *sums) add(e *Event, n int64) {
	v := of(e, n)
	who := place(s.payers, &s.payerList, payer{e.OrgID, e.UserID, e.APIKeyID, e.Tier, e.Model})
	if int(who) == len(s.recent) {
		s.recent = append(s.recent, [3]int32{-1, -1, -1})
	}
	at := uint32(time.Time(e.Timestamp).Unix()) // Validate: from 2000 to 2100
	last := &s.recent[who]
	s.addTo(slot{minute, at - at%60, who}, v, &last[0])
	s.addTo(slot{quarter, at - at%900, who}, v, &last[1])
	s.addTo(slot{day, at - at%86400, who}, v, &last[2])
	if e.WasRateLimited {
		why := place(s.refusals, &s.refuseList, refusal{e.Tier, e.Reason, e.Scope})
		s.addTo(slot{refusals, at - at%3600, why}, v, new(int32(-1)))
	}
}

// addTo adds to a slot. recent is a place where it may be, and becomes its place: events come nearly in order of time, so that few slots have to be
// looked up.
func (s *sums) addTo(to slot, v sum, recent *int32) {
	if i := *recent; i < 0 || s.slotList[i] != to {
		at, ok := s.slots[to]
		if !ok {
			at = int32(len(s.slotList))
			s.slots[to] = at
			s.slotList, s.sumList = append(s.slotList, to), append(s.sumList, sum{})
		}
		*recent = at
	}
	t := &s.sumList[*recent]
	t.events, t.requests, t.rejected = t.events+v.events, t.requests+v.requests, t.rejected+v.rejected
	t.input, t.output, t.cached = plus(t.input, v.input), plus(t.output, v.output), plus(t.cached, v.cached)
}

// place gives the place of v in the list, which it enters if it is new.
func place[T comparable](places map[T]int32, list *[]T, v T) int32 {
	i, ok := places[v]
	if !ok {
		i = int32(len(*list))
		places[v], *list = i, append(*list, v)
	}
	return i
}
