package tier

import (
	"slices"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/subject"
)

// MovesKept is how far back a plan's moves reach: a little more than the longest window. What was consumed before has drained away.
const MovesKept = 25 * time.Hour

// Move says that a payer's keys left one set of shards for another when Name came to Version. In an org, what is a member's own lies in
// one shard, its home; what is split lies in all of them.
type Move struct {
	Name     string // "user:u1", "org:o1"
	Version  int64
	From, To []int
}

// Placing is one event of the history that may have moved keys: a subject changed org or shards, or an org (then both OrgIDs are its own)
// changed shards. Shards 0 is 1.
type Placing struct {
	Name                      string
	Version                   int64
	BeforeOrg, AfterOrg       string
	BeforeShards, AfterShards int64
}

// Moves follows the placings, oldest first, of payer (the user, or the key that no user owns) and of all orgs that it was in meanwhile, to
// where it is now. pools gives the present shards of those orgs. The second result is what happened to the scope of payer's present org.
func Moves(payer subject.Subject, orgID string, shards int64, placings []Placing, pools map[string]int64) (own, pool []Move) {
	at := map[string]int64{} // each org's shards, as of the placing being looked at
	for id, n := range pools {
		at[id] = n
	}
	org, n := orgID, shards
	for _, e := range slices.Backward(placings) {
		switch e.Name {
		case payer.String():
			org, n = e.BeforeOrg, e.BeforeShards
		default:
			at[e.BeforeOrg] = e.BeforeShards
		}
	}
	place := func() []int {
		if org != "" { // only the pool is split
			return []int{limit.Spread{First: subject.Shard(org, payer), Shards: int(max(at[org], 1))}.Home(payer.String())}
		}
		return subject.Spread(subject.Shard("", payer), int(max(n, 1)))
	}
	for _, e := range placings {
		from := place()
		if e.Name == payer.String() {
			org, n = e.AfterOrg, e.AfterShards
		} else {
			at[e.AfterOrg] = e.AfterShards
			if e.AfterOrg == orgID {
				base := subject.Shard(orgID, payer)
				pool = appendMove(pool, e, subject.Spread(base, int(max(e.BeforeShards, 1))), subject.Spread(base, int(max(e.AfterShards, 1))))
			}
		}
		own = appendMove(own, e, from, place())
	}
	return own, pool
}

func appendMove(to []Move, e Placing, from, at []int) []Move {
	if slices.Equal(from, at) {
		return to
	}
	return append(to, Move{Name: e.Name, Version: e.Version, From: from, To: at})
}
