package redisfence

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/tollgate-dev/tollgate/pkg/subject"
)

//go:embed publish.lua
var publishScript string

// Publish leaves a change's version in each of the given shards, none meaning all of them (a tier), and then announces it on Channel.
// When it returns nil, no check that starts from now on passes with an older version. An older version never overwrites a newer one, so
// calls may be repeated and come in any order. After an error some shards may have it: publish again.
//
// How long it waits for a Redis that is away is bound by ctx only if the client was made with ContextTimeoutEnabled.
func Publish(ctx context.Context, client redis.UniversalClient, shards []int, c Change) error {
	if c.Version < 1 {
		return fmt.Errorf("publish %s to redis: version %d, want at least 1", c.Name, c.Version)
	}
	if len(shards) == 0 {
		shards = make([]int, subject.Shards)
		for i := range shards {
			shards[i] = i
		}
	}
	message, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("publish %s to redis: %w", c.Name, err)
	}
	pipe := client.Pipeline()
	for _, shard := range shards {
		// EVAL, not EVALSHA: in a pipeline nobody could load a script that Redis has forgotten, and this one is short.
		pipe.Eval(ctx, publishScript, []string{Key(shard, c.Name)}, Value(c.Version), TTL.Milliseconds())
	}
	cmds, err := pipe.Exec(ctx)
	if err != nil {
		var errs []error
		for _, cmd := range cmds {
			if e := cmd.Err(); e != nil && !errors.Is(err, e) {
				errs = append(errs, e)
				break // one more is enough to tell; 256 would drown it
			}
		}
		return fmt.Errorf("publish %s to redis: %w", c.Name, errors.Join(append([]error{err}, errs...)...))
	}
	if err := client.Publish(ctx, Channel, message).Err(); err != nil {
		return fmt.Errorf("announce %s on %s: %w", c.Name, Channel, err)
	}
	return nil
}
