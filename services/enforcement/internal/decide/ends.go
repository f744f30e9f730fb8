package decide

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/usage"
)

// Ends is where reservations are found that nobody has ended, or whose event is not known to be durable.
type Ends interface {
	// DueShards gives the shards in which Due may find something.
	DueShards(ctx context.Context) ([]int, error)
	Due(ctx context.Context, r limit.DueRequest) ([]limit.Due, error)
}

// EndsEvery is how often an instance looks. A dead caller's event is there within this, limit.EmitGrace if an instance dies while it emits,
// and this again: well inside the 30 s of DESIGN §3.
const EndsEvery = 5 * time.Second

// endsAtOnce is how many events are on their way to Kafka at a time. They share its batches.
const endsAtOnce = 64

// EmitEnds makes the events durable that are due: one with outcome expired for each reservation whose caller has died, whichever instance
// granted it, and those of records that were settled while Kafka or their instance was away. It returns how many it made durable. Several
// instances share the work; what one takes and fails to emit is offered again.
func (e *Engine) EmitEnds(ctx context.Context, ends Ends) (int, error) {
	shards, err := ends.DueShards(ctx)
	if err != nil {
		return 0, fmt.Errorf("look for ended reservations: %w", err)
	}
	emitted := 0
	for _, shard := range shards {
		for {
			n, more, err := e.emitShard(ctx, ends, shard)
			emitted += n
			if err != nil {
				return emitted, err
			}
			if !more {
				break
			}
		}
	}
	return emitted, nil
}

func (e *Engine) emitShard(ctx context.Context, ends Ends, shard int) (emitted int, more bool, err error) {
	meta, err := json.Marshal(settleMeta{AtMillis: e.o.Now().UnixMilli(), Outcome: usage.Expired, Region: e.o.Region, Instance: e.o.Instance})
	if err != nil {
		return 0, false, err
	}
	due, err := ends.Due(ctx, limit.DueRequest{Shard: shard, Most: endsAtOnce, Meta: string(meta)})
	if err != nil {
		return 0, false, fmt.Errorf("take ended reservations: %w", err)
	}
	errs := make([]error, len(due))
	var wg sync.WaitGroup
	for i, d := range due {
		wg.Go(func() { errs[i] = e.emitDue(ctx, shard, d) })
	}
	wg.Wait()
	for _, err := range errs {
		if err == nil {
			emitted++
		}
	}
	return emitted, len(due) == endsAtOnce, errors.Join(errs...)
}

func (e *Engine) emitDue(ctx context.Context, shard int, d limit.Due) error {
	rec, err := buildRecord(d.Subject, d.RequestID, d.Settlement)
	if err != nil {
		return fmt.Errorf("event of %s of %s: %w", d.RequestID, d.Subject, err)
	}
	if err := e.events.Usage(ctx, rec); err != nil && !errors.Is(err, ErrUnsendable) { // what was set aside is done with
		return fmt.Errorf("event of %s of %s: %w", d.RequestID, d.Subject, err)
	}
	if err := e.limiter.MarkEmitted(ctx, shard, d.Subject, d.RequestID); err != nil {
		return fmt.Errorf("event of %s of %s is durable, but: %w", d.RequestID, d.Subject, err)
	}
	return nil
}
