package decide

import (
	"time"

	"github.com/tollgate-dev/tollgate/pkg/limit"
)

// The dimensions that every answer names, in the order of its headers. Others appear where a quota has them.
const (
	Requests   = "requests"
	TokensMin  = "tokens_1m"
	TokensDay  = "tokens_1d"
	Concurrent = "concurrent"
)

// Standard lists them.
func Standard() []string { return []string{Requests, TokensMin, TokensDay, Concurrent} }

// Room is what is left in one dimension, in the scope that has least of it. Limit 0: unlimited, and the rest says nothing.
type Room struct {
	Dimension string
	Limit     int64
	Remaining int64     // never negative
	ResetAt   time.Time // when the bucket is full again; zero for Concurrent, which has no clock
}

// Rooms gives the standard dimensions, then the others in the order of their first appearance. Of equal rooms the first scope's is told.
func Rooms(scopes []limit.ScopeState) []Room {
	rooms := make([]Room, 0, 8)
	for _, name := range Standard() {
		rooms = append(rooms, Room{Dimension: name})
	}
	note := func(r Room) {
		for i := range rooms {
			if rooms[i].Dimension == r.Dimension {
				if rooms[i].Limit == 0 || r.Remaining < rooms[i].Remaining {
					rooms[i] = r
				}
				return
			}
		}
		rooms = append(rooms, r)
	}
	for _, s := range scopes {
		for _, l := range s.Limits {
			note(Room{Dimension: l.Dimension(), Limit: l.Capacity, Remaining: max(0, l.Remaining), ResetAt: l.ResetAt})
		}
		if s.Slots > 0 {
			note(Room{Dimension: Concurrent, Limit: s.Slots, Remaining: max(0, s.Slots-s.InUse)})
		}
	}
	return rooms
}
