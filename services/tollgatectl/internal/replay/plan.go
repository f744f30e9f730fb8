package replay

import (
	"fmt"
	"math/rand/v2"
)

// ZipfExponent is how unevenly users share the requests: the k-th busiest sends about 1/k^1.1 of what the busiest does.
const ZipfExponent = 1.1

// Users draws who sends each of n requests, as numbers from 0 (the busiest) to users-1, by a Zipf law.
func Users(seed uint64, users, n int) []int {
	z := rand.NewZipf(rand.New(rand.NewPCG(seed, 0x746f6c6c67617465)), ZipfExponent, 1, uint64(users-1)) //nolint:gosec // a reproducible draw is the point
	out := make([]int, n)
	for i := range out {
		out[i] = int(z.Uint64()) //nolint:gosec // below users, an int
	}
	return out
}

// UserID names the user with number i.
func UserID(prefix string, i int) string { return fmt.Sprintf("%su%05d", prefix, i) }
