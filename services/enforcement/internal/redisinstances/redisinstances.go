package redisinstances

import (
	"context"
	_ "embed"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Every is how often an instance beats. Alive is how long it is believed alive after a beat.
const (
	Every = time.Second
	Alive = 5 * time.Second
)

const key = "tg:instances"

//go:embed beat.lua
var beatLua string

var beatScript = redis.NewScript(beatLua)

// Instances is one instance among all. It is safe for concurrent use.
type Instances struct {
	rdb  redis.UniversalClient
	name string
	addr atomic.Pointer[string]
}

// New makes an instance on a client, which stays the caller's to close. The name is unlike every other instance's, and has no blanks.
func New(rdb redis.UniversalClient, name string) *Instances { return &Instances{rdb: rdb, name: name} }

// Announce has the others know, from the next beat on, at which host:port this instance can be asked.
func (i *Instances) Announce(addr string) { i.addr.Store(&addr) }

func (i *Instances) member() string {
	if addr := i.addr.Load(); addr != nil {
		return i.name + " " + *addr
	}
	return i.name
}

// Beat notes that this instance is alive, and tells how many are, itself included, and the addresses of the others.
func (i *Instances) Beat(ctx context.Context) (live int, others []string, err error) {
	members, err := beatScript.Run(ctx, i.rdb, []string{key}, i.name, i.member(), Alive.Milliseconds()).StringSlice()
	if err != nil {
		return 0, nil, fmt.Errorf("count the instances on redis: %w", err)
	}
	for _, m := range members {
		if name, addr, ok := strings.Cut(m, " "); ok && name != i.name {
			others = append(others, addr)
		}
	}
	return len(members), others, nil
}

// Leave says that this instance stops.
func (i *Instances) Leave(ctx context.Context) error {
	if err := i.rdb.ZRem(ctx, key, i.name, i.member()).Err(); err != nil {
		return fmt.Errorf("leave the instances on redis: %w", err)
	}
	return nil
}
