package redisbucket

import (
	"context"
	_ "embed" // the script
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/redisfence"
)

var (
	//go:embed restore.lua
	restoreLua    string
	restoreScript = redis.NewScript(source(preludeLua, bucketLua, restoreLua))
)

var _ limit.Restorer = (*Limiter)(nil)

// restoreAtOnce is how many requests travel together: enough to hide the way, few enough for decisions to come in between.
const restoreAtOnce = 100

// Restore implements limit.Restorer, many requests a round trip.
func (l *Limiter) Restore(ctx context.Context, rs []limit.RestoreRequest) ([]limit.Restored, error) {
	out := make([]limit.Restored, 0, len(rs))
	for len(rs) > 0 {
		n := min(len(rs), restoreAtOnce)
		done, err := l.restore(ctx, rs[:n])
		if err != nil {
			return nil, fmt.Errorf("restore on redis: %w", err)
		}
		out, rs = append(out, done...), rs[n:]
	}
	return out, nil
}

func (l *Limiter) restore(ctx context.Context, rs []limit.RestoreRequest) ([]limit.Restored, error) {
	for _, r := range rs {
		if err := r.Validate(); err != nil {
			return nil, err
		}
	}
	replies, err := l.sendRestores(ctx, rs)
	if redis.HasErrorPrefix(err, "NOSCRIPT") { // what was done meanwhile is done again, and changes nothing
		if err = restoreScript.Load(ctx, l.rdb).Err(); err == nil {
			replies, err = l.sendRestores(ctx, rs)
		}
	}
	if err != nil {
		return nil, err
	}
	out := make([]limit.Restored, len(rs))
	for i, r := range rs {
		if out[i], err = restored(r, replies[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (l *Limiter) sendRestores(ctx context.Context, rs []limit.RestoreRequest) ([][]any, error) {
	pipe := l.rdb.Pipeline()
	calls := make([]*redis.Cmd, len(rs))
	for i, r := range rs {
		keys, args := l.restoreCall(r)
		calls[i] = pipe.EvalSha(ctx, restoreScript.Hash(), keys, args...)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, err
	}
	replies := make([][]any, len(rs))
	for i, c := range calls {
		var err error
		if replies[i], err = c.Slice(); err != nil {
			return nil, err
		}
	}
	return replies, nil
}

// restoreCall gives the keys and arguments of restore.lua; its header says what they are.
func (l *Limiter) restoreCall(r limit.RestoreRequest) (keys []string, args []any) {
	p := prefix(r.Shard)
	args = []any{l.clock(), len(r.Scopes), len(r.Fences), r.Open, r.Look}
	for _, f := range r.Fences {
		args = append(args, f.Version)
	}
	for i, s := range r.Scopes {
		keys = append(keys, p+"b:"+s.Name)
		args = appendCounted(args, []limit.Scope{s})
		args = append(args, billText(s, r.Bills[i]))
	}
	for _, f := range r.Fences {
		keys = append(keys, redisfence.Key(r.Shard, f.Name))
	}
	return append(keys, reservationsKey(r.Shard)), args
}

// billText is a bill in the form of a state.
func billText(s limit.Scope, b limit.Bill) string {
	entries := make([]entry, len(s.Limits))
	for i, l := range s.Limits {
		entries[i] = entry{id: counted[l.Counted], window: l.Window.Milliseconds(), capacity: l.Capacity, Bucket: b.Buckets[i]}
	}
	return stateText(b.At.UnixMilli(), entries, nil)
}

func restored(r limit.RestoreRequest, reply []any) (limit.Restored, error) {
	n, err := integers(reply, 1)
	if err != nil {
		return limit.Restored{}, err
	}
	if n[0] == -1 {
		if n, err = integers(reply, 3); err != nil {
			return limit.Restored{}, err
		}
		return limit.Restored{Stale: &limit.StaleError{Name: r.Fences[n[1]-1].Name, Published: n[2]}}, nil
	}
	out := limit.Restored{At: time.UnixMilli(n[0]).UTC(), Scopes: make([]limit.RestoredScope, len(r.Scopes))}
	reply = reply[1:]
	for i, s := range r.Scopes {
		out.Scopes[i].Limits = make([]limit.RestoredLimit, len(s.Limits))
		if len(reply) < 1+3*len(s.Limits) {
			return limit.Restored{}, errors.New("the script's answer has another shape")
		}
		out.Scopes[i].Raised = reply[0] == int64(1)
		for j := range s.Limits {
			texts := make([]string, 3)
			for k := range texts {
				texts[k] = fmt.Sprint(reply[1+3*j+k])
			}
			v, err := numbers(texts)
			if err != nil {
				return limit.Restored{}, err
			}
			out.Scopes[i].Limits[j] = limit.RestoredLimit{Had: v[0], Held: v[1], Billed: v[2]}
		}
		reply = reply[1+3*len(s.Limits):]
	}
	return out, nil
}
