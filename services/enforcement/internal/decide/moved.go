package decide

import (
	"slices"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/tier"
)

// earlier gives the shards that the payer has left in the last tier.MovesKept, the last one first: a reservation stays where it was made when its payer
// moves, and what it holds is carried along (Carrying). So a request that isn't known where its payer is now is looked for there.
func earlier(p tier.Plan, requestID uuid.UUID) []int {
	home, _ := spreadOf(p, requestID)
	var out []int
	for _, m := range slices.Backward(p.Moves) {
		at := limit.Spread{First: m.From[0], Shards: len(m.From)}.Home(requestID.String())
		if at != home && !slices.Contains(out, at) {
			out = append(out, at)
		}
	}
	return out
}
