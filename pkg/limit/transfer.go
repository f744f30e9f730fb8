package limit

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/subject"
)

// Lender is a Limiter whose shards help each other out; Spread needs it.
type Lender interface {
	Limiter
	// Transfer moves room between a shard and whoever asks, for each scope as its line says. It knows no reservation: calling it twice
	// moves twice.
	Transfer(ctx context.Context, r TransferRequest) (Transferred, error)
	// Find tells in which of some shards a request is known, open or ended.
	Find(ctx context.Context, s subject.Subject, requestID uuid.UUID, shards []int) (shard int, known bool, err error)
}

// TransferRequest takes from, or gives back to, the scopes of one shard.
type TransferRequest struct {
	Shard  int
	Scopes []Scope
	Lines  []Line // one for each scope
	Keep   bool   // buckets keep their capacity
}

// Add has one more scope take part. A line without amounts moves none.
func (r *TransferRequest) Add(s Scope, l Line) {
	if l.Amounts == nil {
		l.Amounts = make([]int64, len(s.Limits))
	}
	r.Scopes, r.Lines = append(r.Scopes, s), append(r.Lines, l)
}

// Counted gives for each limit of a scope what it counts of the amounts.
func (s Scope) Counted(of Amounts) []int64 {
	out := make([]int64, len(s.Limits))
	for i, l := range s.Limits {
		out[i] = of[l.Counted]
	}
	return out
}

// Line is what is wanted of one scope.
type Line struct {
	Amounts []int64   // for each limit: taken as far as there is room, or given back if negative
	Drop    time.Time // a lease that ends then is given back; zero: none
	Take    time.Time // a slot is taken until then, if one is free; a whole second; zero: none
	Debt    bool      // take all, room or not
}

// Transferred is what was moved, and the scopes' states afterwards.
type Transferred struct {
	At      time.Time
	Amounts [][]int64 // for each scope and limit
	Slots   []bool    // for each scope: the slot was taken
	Found   []Observed
}

// Validate tells what is wrong with a transfer.
func (r TransferRequest) Validate() error {
	if err := validateScopes(r.Scopes); err != nil {
		return err
	}
	if len(r.Lines) != len(r.Scopes) {
		return fmt.Errorf("transfer of %d scopes has %d lines", len(r.Scopes), len(r.Lines))
	}
	for i, s := range r.Scopes {
		if len(r.Lines[i].Amounts) != len(s.Limits) {
			return fmt.Errorf("scope %s: transfer of %d limits has %d amounts", s.Name, len(s.Limits), len(r.Lines[i].Amounts))
		}
		for _, n := range r.Lines[i].Amounts {
			if n < -MaxAmount || n > MaxAmount {
				return fmt.Errorf("scope %s: an amount of %d is out of range", s.Name, n)
			}
		}
		if take := r.Lines[i].Take; take.UnixMilli()%1000 != 0 && !take.IsZero() {
			return fmt.Errorf("scope %s: a lease ends at a whole second, not at %s", s.Name, take)
		}
	}
	return nil
}

// charge is what a request of this cost is charged for a limit here. It is negative if others have lent more: then their room pays a debt here.
func (s Scope) charge(limit int, cost Amounts) int64 {
	n := cost[s.Limits[limit].Counted]
	if s.lent != nil {
		n -= s.lent[limit]
	}
	return n
}
