package redisbucket

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/redisfence"
	"github.com/tollgate-dev/tollgate/pkg/subject"
)

var (
	//go:embed prelude.lua
	preludeLua string
	//go:embed bucket.lua
	bucketLua string
	//go:embed check.lua
	checkLua string
	//go:embed settle.lua
	settleLua string
	//go:embed consume.lua
	consumeLua string
	//go:embed transfer.lua
	transferLua string
	//go:embed adjust.lua
	adjustLua string
	//go:embed take.lua
	takeLua string
	//go:embed put.lua
	putLua string
	//go:embed due.lua
	dueLua string
	//go:embed emitted.lua
	emittedLua string

	checkSource    = source(preludeLua, bucketLua, checkLua)
	checkScript    = redis.NewScript(checkSource)
	settleScript   = redis.NewScript(source(preludeLua, bucketLua, settleLua))
	consumeScript  = redis.NewScript(source(preludeLua, bucketLua, consumeLua))
	transferScript = redis.NewScript(source(preludeLua, bucketLua, transferLua))
	adjustScript   = redis.NewScript(source(preludeLua, bucketLua, adjustLua))
	takeScript     = redis.NewScript(source(preludeLua, bucketLua, takeLua))
	putScript      = redis.NewScript(source(preludeLua, putLua))
	dueScript      = redis.NewScript(source(preludeLua, dueLua))
	emittedScript  = redis.NewScript(source(preludeLua, emittedLua))
)

// source joins files to one script, without the lines that only comment: the embedded Redis compiles it at every call.
func source(files ...string) string {
	var code []string
	for line := range strings.Lines(strings.Join(files, "")) {
		if text := strings.TrimSpace(line); text != "" && !strings.HasPrefix(text, "--") {
			code = append(code, text)
		}
	}
	return strings.Join(code, "\n")
}

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

var _ limit.Lender = (*Limiter)(nil)

// New makes a Limiter on a client, which stays the caller's to close.
func New(rdb redis.UniversalClient, o Options) *Limiter {
	if o.Tombstone == 0 {
		o.Tombstone = limit.DefaultTombstone
	}
	return &Limiter{rdb: rdb, tombstone: o.Tombstone.Milliseconds(), now: o.Now}
}

// Load puts the scripts into Redis's cache, so that the first decision needn't.
func (l *Limiter) Load(ctx context.Context) error {
	for _, s := range []*redis.Script{checkScript, settleScript, consumeScript, transferScript, adjustScript, takeScript, putScript, dueScript, emittedScript} {
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
	switch {
	case r.DryRun:
		mode = "dry"
	case r.Known:
		mode = "known"
	case r.Fresh:
		mode = "fresh"
	}
	return l.check(ctx, r, mode)
}

// Status implements limit.Limiter.
func (l *Limiter) Status(ctx context.Context, r limit.StatusRequest) (limit.Status, error) {
	d, err := l.check(ctx, limit.CheckRequest{Shard: r.Shard, Scopes: r.Scopes, Fences: r.Fences}, "status")
	return limit.Status{At: d.At, Scopes: d.Scopes}, err
}

func (l *Limiter) check(ctx context.Context, r limit.CheckRequest, mode string) (limit.Decision, error) {
	if err := r.Validate(); err != nil {
		return limit.Decision{}, err
	}
	keys, args := l.checkCall(r, mode)
	reply, err := checkScript.Run(ctx, l.rdb, keys, args...).Text()
	if err != nil {
		return limit.Decision{}, fmt.Errorf("check on redis: %w", err)
	}
	var answer checkAnswer
	if err := answer.read(reply, r); err != nil {
		var stale *limit.StaleError
		if errors.As(err, &stale) {
			return limit.Decision{}, stale
		}
		return limit.Decision{}, fmt.Errorf("check on redis: %w", err)
	}
	code, at, found := answer.code, time.UnixMilli(answer.now).UTC(), answer.found
	if mode == "known" && code != 2 {
		return limit.Decision{At: at}, nil
	}
	d := limit.Conclude(r, code != 0 || mode == "status", at, found)
	if d.Allowed && (mode == "check" || mode == "fresh" || mode == "known") {
		d.Repeated, d.Reserved = code == 2, r.Cost
		if d.Repeated {
			d.Reserved = answer.reserved
		}
		if answer.lease != 0 {
			d.LeaseUntil = time.UnixMilli(answer.lease).UTC()
		}
	}
	return d, nil
}

// checkAnswer is what check.lua answers; its header says in what form. Times in ms.
type checkAnswer struct {
	code, now, lease int64
	reserved         limit.Amounts // of a repeat
	found            []limit.Observed
}

var errShape = errors.New("the script's answer has another shape")

// read gives a *limit.StaleError if a fence is newer.
func (a *checkAnswer) read(reply string, r limit.CheckRequest) error {
	if strings.HasPrefix(reply, "-1 ") {
		n, err := numbers(strings.Fields(reply))
		if err != nil || len(n) != 3 || n[1] < 1 || n[1] > int64(len(r.Fences)) {
			return errShape
		}
		return &limit.StaleError{Name: r.Fences[n[1]-1].Name, Published: n[2]}
	}
	if len(reply) < 11 {
		return errShape
	}
	a.code, a.now, a.lease = bytesOf(reply, 1), bytesOf(reply[1:], 6), 1000*bytesOf(reply[7:], 4)
	a.found = make([]limit.Observed, len(r.Scopes))
	reply = reply[11:]
	for i, s := range r.Scopes {
		if len(reply) < 10 || len(reply) < 10+int(bytesOf(reply[6:], 4)) {
			return errShape
		}
		end := 10 + int(bytesOf(reply[6:], 4))
		var err error
		if a.found[i], err = observed(s, a.now, bytesOf(reply, 6), reply[10:end]); err != nil {
			return err
		}
		reply = reply[end:]
	}
	if a.code == 2 {
		n, err := numbers(strings.Fields(reply))
		if err != nil || len(n) != 5 {
			return errShape
		}
		a.lease, a.reserved = n[0], limit.Amounts{limit.Requests: n[1], limit.Tokens: n[2], limit.InputTokens: n[3], limit.OutputTokens: n[4]}
	}
	return nil
}

// prefix begins every key of a shard.
func prefix(shard int) string { return "tg:" + subject.Tag(shard) + ":" }

func memberOf(s subject.Subject, id uuid.UUID) string { return s.String() + ":" + id.String() }

// keysOf gives the keys of a script in the order that their headers name.
func keysOf(shard int, scopes []limit.Scope, member string, fences []limit.Fence) []string {
	p := prefix(shard)
	keys := make([]string, 0, len(scopes)+2+len(fences))
	for _, s := range scopes {
		keys = append(keys, p+"b:"+s.Name)
	}
	for _, f := range fences {
		keys = append(keys, redisfence.Key(shard, f.Name))
	}
	return append(keys, tombstoneKey(shard, member), reservationsKey(shard))
}

// endKeys gives the keys of a script that ends a request, or has it go on.
func endKeys(shard int, scopes []limit.Scope, member string, fences []limit.Fence) []string {
	n, keys := len(scopes), keysOf(shard, scopes, member, fences)
	for _, s := range scopes {
		keys = slices.Insert(keys, n, partedKey(shard, s.Name))
		n++
	}
	return keys
}

// partedKey notes that a scope was shared out to several shards, and when.
func partedKey(shard int, scope string) string { return prefix(shard) + "p:" + scope }

func tombstoneKey(shard int, member string) string { return prefix(shard) + "r:" + member }

func reservationsKey(shard int) string { return prefix(shard) + "o" }

// leaseMillis gives a lease in ms, the default for 0.
func leaseMillis(d time.Duration) int64 {
	if d == 0 {
		d = limit.DefaultLease
	}
	return d.Milliseconds()
}

func scopeID(s limit.Scope) string { return string(s.Kind) + "=" + s.Name }

// checkCall gives the keys and arguments of check.lua; its header says what they are.
func (l *Limiter) checkCall(r limit.CheckRequest, mode string) (keys []string, args []any) {
	member, held := memberOf(r.Subject, r.RequestID), make([]string, 0, len(r.Scopes))
	for _, s := range r.Scopes {
		held = append(held, scopeID(s))
		if at, lent := s.SlotAt(); lent {
			held = append(held, "~"+scopeID(s)+"#"+strconv.Itoa(at))
		}
	}
	held = append(held, loansOf(r.Scopes)...)
	if len(held) == 0 {
		held = []string{"-"}
	}
	keeps := fmt.Sprintf("%d %d %d %d %d %d %s %s", r.Cost[limit.Requests], r.Cost[limit.Tokens], r.Cost[limit.InputTokens], r.Cost[limit.OutputTokens],
		r.Drawn[limit.Tokens], r.Drawn[limit.OutputTokens], strings.Join(held, ","), r.Meta)
	args = make([]any, 0, 8+len(r.Fences)+5*len(r.Scopes))
	args = append(args, l.clock(), mode, len(r.Scopes), len(r.Fences), leaseMillis(r.Lease), limit.Retention.Milliseconds(), member, keeps)
	for _, f := range r.Fences {
		args = append(args, f.Version)
	}
	for _, s := range r.Scopes {
		lent, slots := s.Lent(), any(s.Slots)
		if _, slotLent := s.SlotAt(); slotLent {
			slots = "-"
		}
		args = appendLimits(append(args, slots), s.Limits, func(j int) int64 {
			if lent == nil {
				return r.Cost[s.Limits[j].Counted]
			}
			return r.Cost[s.Limits[j].Counted] - lent[j]
		})
	}
	return keysOf(r.Shard, r.Scopes, member, r.Fences), args
}

// appendCounted adds what settle.lua and consume.lua take of each scope.
func appendCounted(args []any, scopes []limit.Scope) []any {
	for _, s := range scopes {
		args = appendKinds(append(args, scopeID(s)), s)
	}
	return args
}

// appendKinds adds a scope's limits with what they count, or that they are those of its state.
func appendKinds(args []any, s limit.Scope) []any {
	if s.Own() {
		return append(args, -1, "", "", "")
	}
	return appendLimits(args, s.Limits, func(j int) int64 { return int64(s.Limits[j].Counted) + 1 })
}

// integers reads the first n values of a script's answer.
func integers(reply []any, n int) ([]int64, error) {
	if len(reply) < n {
		return nil, fmt.Errorf("the script answered %d values, want %d", len(reply), n)
	}
	out := make([]int64, n)
	for i := range out {
		v, ok := reply[i].(int64)
		if !ok {
			return nil, fmt.Errorf("value %d of the script's answer is %v, want a number", i, reply[i])
		}
		out[i] = v
	}
	return out, nil
}

// numbers reads decimal integers.
func numbers(texts []string) ([]int64, error) {
	out := make([]int64, len(texts))
	for i, text := range texts {
		v, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("value %d of the script's answer: %w", i, err)
		}
		out[i] = v
	}
	return out, nil
}

// MarkEmitted implements limit.Limiter.
func (l *Limiter) MarkEmitted(ctx context.Context, shard int, s subject.Subject, requestID uuid.UUID) error {
	member := memberOf(s, requestID)
	if err := emittedScript.Run(ctx, l.rdb, []string{tombstoneKey(shard, member), reservationsKey(shard)}, l.clock(), l.tombstone, member).Err(); err != nil {
		return fmt.Errorf("mark as emitted on redis: %w", err)
	}
	return nil
}
