package quotacache

import (
	"strings"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/subject"
)

// maxChanges bounds what is remembered of announced changes; beyond it everything is dropped instead.
const maxChanges = 100_000

// changes remembers when each name was last announced as changed. One that is older than every plan can be is forgotten.
type changes struct {
	at     map[string]uint64 // seq of each name's last change
	newest uint64
	ttl    time.Duration
	queue  []change // by seq
}

type change struct {
	name string
	seq  uint64
	when time.Time
}

func newChanges(ttl time.Duration) changes { return changes{at: map[string]uint64{}, ttl: ttl} }

// note remembers a change. false: there were too many.
func (c *changes) note(name string, seq uint64, now time.Time) bool {
	for len(c.queue) > 0 && !now.Before(c.queue[0].when.Add(c.ttl)) {
		old := c.queue[0]
		if c.at[old.name] == old.seq {
			delete(c.at, old.name)
		}
		c.queue[0] = change{}
		c.queue = c.queue[1:]
	}
	if len(c.queue) >= maxChanges {
		return false
	}
	c.at[name], c.newest = seq, seq
	c.queue = append(c.queue, change{name, seq, now})
	return true
}

// nameable tells what a plan can depend on from anything else that may be announced.
func nameable(name string) bool {
	kind, id, ok := strings.Cut(name, ":")
	switch kind {
	case "user", "api_key", "org", "tier":
		return ok && subject.ValidateID(id) == nil
	}
	return false
}
