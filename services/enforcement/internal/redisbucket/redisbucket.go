package redisbucket

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/redisfence"
	"github.com/tollgate-dev/tollgate/pkg/subject"
)

var (
	//go:embed bucket.lua
	bucketLua string
	//go:embed check.lua
	checkLua string
	//go:embed settle.lua
	settleLua string
	//go:embed emitted.lua
	emittedLua string

	checkScript   = redis.NewScript(bucketLua + checkLua)
	settleScript  = redis.NewScript(bucketLua + settleLua)
	emittedScript = redis.NewScript(emittedLua)
)

// Options are a Limiter's settings. Zero values take the defaults.
type Options struct {
	Tombstone time.Duration    // how long a settled reservation is remembered; limit.DefaultTombstone if 0
	Now       func() time.Time // for tests: overrides Redis's own clock
}

// Limiter decides on Redis. It is safe for concurrent use.
type Limiter struct {
	rdb       redis.UniversalClient
	tombstone int64
	now       func() time.Time
}

var _ limit.Limiter = (*Limiter)(nil)

// New makes a Limiter on a client, which stays the caller's to close.
func New(rdb redis.UniversalClient, o Options) *Limiter {
	if o.Tombstone == 0 {
		o.Tombstone = limit.DefaultTombstone
	}
	return &Limiter{rdb: rdb, tombstone: o.Tombstone.Milliseconds(), now: o.Now}
}

// Load puts the scripts into Redis's cache, so that the first decision needn't.
func (l *Limiter) Load(ctx context.Context) error {
	for _, s := range []*redis.Script{checkScript, settleScript, emittedScript} {
		if err := s.Load(ctx, l.rdb).Err(); err != nil {
			return fmt.Errorf("load the limiter's scripts: %w", err)
		}
	}
	return nil
}

func (l *Limiter) clock() string {
	if l.now == nil {
		return ""
	}
	return strconv.FormatInt(l.now().UnixMilli(), 10)
}

// Check implements limit.Limiter.
func (l *Limiter) Check(ctx context.Context, r limit.CheckRequest) (limit.Decision, error) {
	mode := "check"
	if r.DryRun {
		mode = "dry"
	}
	return l.check(ctx, r, mode)
}

// Status implements limit.Limiter.
func (l *Limiter) Status(ctx context.Context, r limit.StatusRequest) (limit.Status, error) {
	d, err := l.check(ctx, limit.CheckRequest{Shard: r.Shard, Scopes: r.Scopes}, "status")
	return limit.Status{At: d.At, Scopes: d.Scopes}, err
}

func (l *Limiter) check(ctx context.Context, r limit.CheckRequest, mode string) (limit.Decision, error) {
	if err := r.Validate(); err != nil {
		return limit.Decision{}, err
	}
	keys, args := l.checkCall(r, mode)
	reply, err := checkScript.Run(ctx, l.rdb, keys, args...).Int64Slice()
	if err != nil {
		return limit.Decision{}, fmt.Errorf("check on redis: %w", err)
	}
	if len(reply) == 3 && reply[0] == -1 {
		f := r.Fences[reply[1]-1]
		return limit.Decision{}, &limit.StaleError{Name: f.Name, Published: reply[2]}
	}
	found, err := observed(r.Scopes, reply)
	if err != nil {
		return limit.Decision{}, err
	}
	d := limit.Conclude(r, reply[0] != 0 || mode == "status", time.UnixMilli(reply[1]).UTC(), found)
	if d.Allowed && mode == "check" {
		d.Repeated, d.LeaseUntil = reply[0] == 2, time.UnixMilli(reply[2]).UTC()
	}
	return d, nil
}

// checkCall gives the keys and arguments of check.lua; its header says what they are.
func (l *Limiter) checkCall(r limit.CheckRequest, mode string) (keys []string, args []any) {
	prefix := "tg:" + subject.Tag(r.Shard)
	lease := r.Lease
	if lease == 0 {
		lease = limit.DefaultLease
	}
	member := r.Subject.String() + ":" + r.RequestID.String()
	kinds := ""
	keys = make([]string, 0, 2*len(r.Scopes)+1+len(r.Fences))
	for i, s := range r.Scopes {
		keys = append(keys, prefix+":b:"+s.Name)
		if i > 0 {
			kinds += ","
		}
		kinds += string(s.Kind)
	}
	keys = append(keys, prefix+":r:"+member)
	args = make([]any, 0, 13+len(r.Fences)+14*len(r.Scopes))
	args = append(args, l.clock(), mode, len(r.Scopes), len(r.Fences), lease.Milliseconds(), limit.Retention.Milliseconds(), member,
		r.Cost[limit.Requests], r.Cost[limit.Tokens], r.Cost[limit.InputTokens], r.Cost[limit.OutputTokens], kinds, r.Meta)
	for _, f := range r.Fences {
		keys, args = append(keys, redisfence.Key(r.Shard, f.Name)), append(args, f.Version)
	}
	for _, s := range r.Scopes {
		keys = append(keys, prefix+":l:"+s.Name)
		args = appendLimits(append(args, s.Slots), s.Limits)
	}
	return keys, args
}

var counted = [...]string{limit.Requests: "r", limit.Tokens: "t", limit.InputTokens: "i", limit.OutputTokens: "o"}

func appendLimits(args []any, limits []limit.Limit) []any {
	args = append(args, len(limits))
	for _, l := range limits {
		id := counted[l.Counted] + strconv.FormatFloat(l.Window.Seconds(), 'f', -1, 64)
		args = append(args, id, int(l.Counted)+1, l.Capacity, l.Window.Milliseconds())
	}
	return args
}

func observed(scopes []limit.Scope, reply []int64) ([]limit.Observed, error) {
	want := 3
	for _, s := range scopes {
		want += 2 + 3*len(s.Limits)
	}
	if len(reply) != want {
		return nil, fmt.Errorf("check on redis: the script answered %d numbers, want %d", len(reply), want)
	}
	found, at := make([]limit.Observed, len(scopes)), 3
	for i, s := range scopes {
		found[i] = limit.Observed{LagMillis: reply[at], InUse: reply[at+1], Buckets: make([]limit.Bucket, len(s.Limits))}
		at += 2
		for j := range s.Limits {
			found[i].Buckets[j] = limit.Bucket{Consumed: reply[at], Credit: reply[at+1], Fast: reply[at+2]}
			at += 3
		}
	}
	return found, nil
}

var statuses = map[int64]limit.SettleStatus{1: limit.Settled, 2: limit.AlreadySettled, 3: limit.Unknown}

// Settle implements limit.Limiter.
func (l *Limiter) Settle(ctx context.Context, r limit.SettleRequest) (limit.Settlement, error) {
	if err := r.Validate(); err != nil {
		return limit.Settlement{}, err
	}
	prefix := "tg:" + subject.Tag(r.Shard)
	member := r.Subject.String() + ":" + r.RequestID.String()
	keys := make([]string, 0, 2*len(r.Scopes)+1)
	args := []any{l.clock(), len(r.Scopes), l.tombstone, member,
		r.Actual[limit.Requests], r.Actual[limit.Tokens], r.Actual[limit.InputTokens], r.Actual[limit.OutputTokens], r.Meta}
	for _, s := range r.Scopes {
		keys = append(keys, prefix+":b:"+s.Name)
		args = appendLimits(append(args, string(s.Kind)), s.Limits)
	}
	keys = append(keys, prefix+":r:"+member)
	for _, s := range r.Scopes {
		keys = append(keys, prefix+":l:"+s.Name)
	}
	reply, err := settleScript.Run(ctx, l.rdb, keys, args...).Slice()
	if err != nil {
		return limit.Settlement{}, fmt.Errorf("settle on redis: %w", err)
	}
	return settlement(reply)
}

func settlement(reply []any) (limit.Settlement, error) {
	if len(reply) != 10 {
		return limit.Settlement{}, fmt.Errorf("settle on redis: the script answered %d values, want 10", len(reply))
	}
	var n [7]int64
	for i := range n {
		v, ok := reply[i].(int64)
		if !ok {
			return limit.Settlement{}, fmt.Errorf("settle on redis: value %d is %v, want a number", i, reply[i])
		}
		n[i] = v
	}
	checkMeta, ok1 := reply[7].(string)
	meta, ok2 := reply[8].(string)
	emitted, ok3 := reply[9].(int64)
	status, ok4 := statuses[n[0]]
	if !ok1 || !ok2 || !ok3 || !ok4 {
		return limit.Settlement{}, errors.New("settle on redis: the script's answer has another shape")
	}
	s := limit.Settlement{Status: status, At: time.UnixMilli(n[1]).UTC(), CheckMeta: checkMeta, Meta: meta, Emitted: emitted == 1,
		Reserved: limit.Amounts{limit.Requests: n[3], limit.Tokens: n[4], limit.InputTokens: n[5], limit.OutputTokens: n[6]}}
	if n[2] != 0 {
		s.CheckedAt = time.UnixMilli(n[2]).UTC()
	}
	return s, nil
}

// MarkEmitted implements limit.Limiter.
func (l *Limiter) MarkEmitted(ctx context.Context, shard int, s subject.Subject, requestID uuid.UUID) error {
	key := "tg:" + subject.Tag(shard) + ":r:" + s.String() + ":" + requestID.String()
	if err := emittedScript.Run(ctx, l.rdb, []string{key}).Err(); err != nil {
		return fmt.Errorf("mark as emitted on redis: %w", err)
	}
	return nil
}
