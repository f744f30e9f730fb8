package shed

import (
	"crypto/sha256"
	"encoding/binary"
	"time"

	"github.com/google/uuid"
)

// Reason is what a shed request is refused by.
const Reason = "shed"

// The curve of DESIGN §8.
const (
	// Ramp is over how much load a tier's share grows from 0 to 1.
	Ramp = 0.05
	// FallbackFrom is the level from which large models are replaced, for priorities below FallbackBelow.
	FallbackFrom  = 0.80
	FallbackBelow = 60
	// Never is the priority from which no request is shed.
	Never = 100
)

// begins are the priorities of the shipped tiers, and the level from which each sheds. The last one is where Never would begin, so that
// priorities just below it have a place too.
var begins = []struct {
	priority int64
	level    float64
}{{20, 0.80}, {60, 0.85}, {80, 0.90}, {Never, 0.95}}

// Begin is the level from which a priority below Never is shed. Priorities below free's are shed as free is.
func Begin(priority int64) float64 {
	if priority <= begins[0].priority {
		return begins[0].level
	}
	for i, b := range begins[1:] {
		if a := begins[i]; priority < b.priority {
			return a.level + (b.level-a.level)*float64(priority-a.priority)/float64(b.priority-a.priority)
		}
	}
	return begins[len(begins)-1].level
}

// Share is the part of a priority's requests, 0 to 1, that is shed at a level.
func Share(level float64, priority int64) float64 {
	if priority >= Never {
		return 0
	}
	return min(1, max(0, (level-Begin(priority))/Ramp))
}

// Draw is where a request lies among all, from 0 to below 1: at random over ids, and always the same for one id.
func Draw(requestID uuid.UUID) float64 {
	h := sha256.Sum256(requestID[:]) // the bits of an id are not all random: a version 7 begins with the time
	return float64(binary.BigEndian.Uint64(h[:8])>>11) / (1 << 53)
}

// A shed request is advised to come back after HintLeast to HintMost: by its id, so that those who were shed together do not return together.
const (
	HintLeast = 5 * time.Second
	HintMost  = 10 * time.Second
)

// Hint is the wait that a shed request is told, in whole milliseconds. It promises nothing: the load may last.
func Hint(requestID uuid.UUID) time.Duration {
	h := sha256.Sum256(requestID[:])
	spread := uint64((HintMost - HintLeast) / time.Millisecond)
	return HintLeast + time.Duration(binary.BigEndian.Uint64(h[8:16])%(spread+1))*time.Millisecond //nolint:gosec // at most 5,000
}

// Request is what the verdict depends on.
type Request struct {
	ID       uuid.UUID
	Model    string // as asked for
	Priority int64
	Allows   func(model string) bool // what the plan covers
}

// Verdict says which model is served, and whether the request is shed.
type Verdict struct {
	Model string
	Shed  bool
}

// Decide judges one request by the level of each model.
func (f Fallbacks) Decide(r Request, level func(model string) float64) Verdict {
	v := Verdict{Model: r.Model}
	if small, ok := f[r.Model]; ok && r.Priority < FallbackBelow && level(r.Model) >= FallbackFrom && r.Allows(small) {
		v.Model = small
	}
	if share := Share(level(v.Model), r.Priority); share > 0 {
		v.Shed = Draw(r.ID) < share
	}
	return v
}
