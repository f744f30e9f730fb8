package redisinstances

import (
	"context"
	_ "embed"
	"fmt"
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
}

// New makes an instance on a client, which stays the caller's to close. The name is unlike every other instance's.
func New(rdb redis.UniversalClient, name string) *Instances { return &Instances{rdb, name} }

// Beat notes that this instance is alive and tells how many are, itself included.
func (i *Instances) Beat(ctx context.Context) (int, error) {
	n, err := beatScript.Run(ctx, i.rdb, []string{key}, i.name, Alive.Milliseconds()).Int()
	if err != nil {
		return 0, fmt.Errorf("count the instances on redis: %w", err)
	}
	return n, nil
}

// Leave says that this instance stops.
func (i *Instances) Leave(ctx context.Context) error {
	if err := i.rdb.ZRem(ctx, key, i.name).Err(); err != nil {
		return fmt.Errorf("leave the instances on redis: %w", err)
	}
	return nil
}
