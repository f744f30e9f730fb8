package redisbucket

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
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
	takeScript     = redis.NewScript(source(preludeLua, takeLua))
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
	for _, s := range []*redis.Script{checkScript, settleScript, consumeScript, transferScript, takeScript, putScript, dueScript, emittedScript} {
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
	lines := strings.Split(reply, "\n")
	n, err := numbers(strings.Fields(lines[0]))
	if err != nil {
		return limit.Decision{}, fmt.Errorf("check on redis: %w", err)
	}
	if len(n) == 3 && n[0] == -1 {
		return limit.Decision{}, &limit.StaleError{Name: r.Fences[n[1]-1].Name, Published: n[2]}
	}
	if len(n) != 7 || len(lines) != 1+len(r.Scopes) {
		return limit.Decision{}, fmt.Errorf("check on redis: the script's answer has another shape: %q", reply)
	}
	code, at := n[0], time.UnixMilli(n[1]).UTC()
	found := make([]limit.Observed, len(r.Scopes))
	for i, s := range r.Scopes {
		open, text, _ := strings.Cut(lines[1+i], " ")
		if found[i], err = observed(s, n[1], open, text); err != nil {
			return limit.Decision{}, fmt.Errorf("check on redis: %w", err)
		}
	}
	d := limit.Conclude(r, code != 0 || mode == "status", at, found)
	if d.Allowed && (mode == "check" || mode == "fresh") {
		d.Repeated, d.Reserved = code == 2, r.Cost
		if d.Repeated {
			d.Reserved = limit.Amounts{limit.Requests: n[3], limit.Tokens: n[4], limit.InputTokens: n[5], limit.OutputTokens: n[6]}
		}
		if n[2] != 0 {
			d.LeaseUntil = time.UnixMilli(n[2]).UTC()
		}
	}
	return d, nil
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
		if _, lent := s.Lent(); lent {
			held = append(held, "~"+scopeID(s))
		}
	}
	keeps := fmt.Sprintf("%d %d %d %d %d %d %s %s", r.Cost[limit.Requests], r.Cost[limit.Tokens], r.Cost[limit.InputTokens], r.Cost[limit.OutputTokens],
		r.Drawn[limit.Tokens], r.Drawn[limit.OutputTokens], strings.Join(held, ","), r.Meta)
	args = make([]any, 0, 8+len(r.Fences)+12*len(r.Scopes))
	args = append(args, l.clock(), mode, len(r.Scopes), len(r.Fences), leaseMillis(r.Lease), limit.Retention.Milliseconds(), member, keeps)
	for _, f := range r.Fences {
		args = append(args, f.Version)
	}
	for _, s := range r.Scopes {
		lent, slotLent := s.Lent()
		slots := any(s.Slots)
		if slotLent {
			slots = "-"
		}
		args = append(args, slots, len(s.Limits), signature(s.Limits))
		for j, l := range s.Limits {
			charge := r.Cost[l.Counted]
			if lent != nil {
				charge -= lent[j]
			}
			args = append(args, l.Capacity, l.Window.Milliseconds(), charge)
		}
	}
	return keysOf(r.Shard, r.Scopes, member, r.Fences), args
}

// appendCounted adds what settle.lua and consume.lua take of each scope.
func appendCounted(args []any, scopes []limit.Scope) []any {
	for _, s := range scopes {
		id := scopeID(s)
		if s.IfHeld {
			id = "?" + id
		}
		args = append(args, id, len(s.Limits), signature(s.Limits))
		for _, l := range s.Limits {
			args = append(args, l.Capacity, l.Window.Milliseconds(), int(l.Counted)+1)
		}
	}
	return args
}

var counted = [...]string{limit.Requests: "r", limit.Tokens: "t", limit.InputTokens: "i", limit.OutputTokens: "o"}

// signature names a list of limits and their capacities as the state's text begins: "r60:40,t60:40000,t86400:500000|".
func signature(limits []limit.Limit) string {
	b := make([]byte, 0, 16*len(limits))
	for i, l := range limits {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, counted[l.Counted]...)
		b = strconv.AppendFloat(b, l.Window.Seconds(), 'f', -1, 64)
		b = append(b, ':')
		b = strconv.AppendInt(b, l.Capacity, 10)
	}
	return string(append(b, '|'))
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

// observed reads a scope's open leases and the text of its limits' state (bucket.lua tells its form). The given limits come first in it.
func observed(s limit.Scope, now int64, open, text string) (limit.Observed, error) {
	inUse, err := strconv.ParseInt(open, 10, 64)
	if err != nil {
		return limit.Observed{}, fmt.Errorf("open leases of scope %s: %w", s.Name, err)
	}
	at, buckets, err := parseState(text, len(s.Limits))
	if err != nil {
		return limit.Observed{}, fmt.Errorf("state of scope %s: %w", s.Name, err)
	}
	return limit.Observed{InUse: inUse, LagMillis: max(0, at-now), Buckets: buckets}, nil
}

func parseState(text string, limits int) (at int64, buckets []limit.Bucket, err error) {
	parts := strings.Split(text, "|")
	if len(parts) < 2 {
		return 0, nil, fmt.Errorf("%q has no numbers", text)
	}
	numbers := strings.Fields(parts[1])
	if len(numbers) < 1+2*limits {
		return 0, nil, fmt.Errorf("%q has too few numbers", text)
	}
	var fasts []string
	if len(parts) > 2 {
		if fasts = strings.Fields(parts[2]); len(fasts) < limits {
			return 0, nil, fmt.Errorf("%q has too few fast drains", text)
		}
	}
	read := func(s string) int64 {
		v, e := strconv.ParseInt(s, 10, 64)
		err = errors.Join(err, e)
		return v
	}
	at, buckets = read(numbers[0]), make([]limit.Bucket, limits)
	for i := range buckets {
		buckets[i] = limit.Bucket{Consumed: read(numbers[1+2*i]), Credit: read(numbers[2+2*i])}
		if fasts != nil {
			buckets[i].Fast = read(fasts[i])
		}
	}
	return at, buckets, err
}

var statuses = map[int64]limit.SettleStatus{1: limit.Settled, 2: limit.AlreadySettled, 3: limit.Unknown}

// Settle implements limit.Limiter.
func (l *Limiter) Settle(ctx context.Context, r limit.SettleRequest) (limit.Settlement, error) {
	if err := r.Validate(); err != nil {
		return limit.Settlement{}, err
	}
	member := memberOf(r.Subject, r.RequestID)
	mode := "any"
	if r.Known {
		mode = "known"
	}
	reply, err := l.settle(ctx, r.Shard, member, r.Scopes, r.Actual, r.Meta, mode)
	if err != nil {
		return limit.Settlement{}, fmt.Errorf("settle on redis: %w", err)
	}
	return settlement(reply)
}

// Cancel implements limit.Limiter.
func (l *Limiter) Cancel(ctx context.Context, r limit.CancelRequest) (bool, error) {
	if err := (limit.SettleRequest{Scopes: r.Scopes}).Validate(); err != nil {
		return false, err
	}
	reply, err := l.settle(ctx, r.Shard, memberOf(r.Subject, r.RequestID), r.Scopes, limit.Amounts{}, r.Meta, "cancel")
	if err == nil {
		var s limit.Settlement
		if s, err = settlement(reply); err == nil {
			return s.Status == limit.Settled, nil
		}
	}
	return false, fmt.Errorf("cancel on redis: %w", err)
}

func (l *Limiter) settle(ctx context.Context, shard int, member string, scopes []limit.Scope, actual limit.Amounts, meta, mode string) ([]any, error) {
	args := appendCounted([]any{l.clock(), len(scopes), limit.Retention.Milliseconds(), member, actual[limit.Requests], actual[limit.Tokens],
		actual[limit.InputTokens], actual[limit.OutputTokens], meta, limit.EmitGrace.Milliseconds(), mode}, scopes)
	return settleScript.Run(ctx, l.rdb, keysOf(shard, scopes, member, nil), args...).Slice()
}

func settlement(reply []any) (limit.Settlement, error) {
	if len(reply) != 11 {
		return limit.Settlement{}, fmt.Errorf("settle on redis: the script answered %d values, want 11", len(reply))
	}
	n, err := integers(reply, 7)
	if err != nil {
		return limit.Settlement{}, fmt.Errorf("settle on redis: %w", err)
	}
	checkMeta, ok1 := reply[7].(string)
	meta, ok2 := reply[8].(string)
	emitted, ok3 := reply[9].(int64)
	status, ok4 := statuses[n[0]]
	leaseWas, ok5 := reply[10].(int64)
	if !ok1 || !ok2 || !ok3 || !ok4 || !ok5 {
		return limit.Settlement{}, errors.New("settle on redis: the script's answer has another shape")
	}
	s := limit.Settlement{Status: status, At: time.UnixMilli(n[1]).UTC(), CheckMeta: checkMeta, Meta: meta, Emitted: emitted == 1,
		Reserved: limit.Amounts{limit.Requests: n[3], limit.Tokens: n[4], limit.InputTokens: n[5], limit.OutputTokens: n[6]}}
	if n[2] != 0 {
		s.CheckedAt = time.UnixMilli(n[2]).UTC()
	}
	if leaseWas != 0 {
		s.LeaseWas = time.UnixMilli(leaseWas).UTC()
	}
	return s, nil
}

// MarkEmitted implements limit.Limiter.
func (l *Limiter) MarkEmitted(ctx context.Context, shard int, s subject.Subject, requestID uuid.UUID) error {
	member := memberOf(s, requestID)
	if err := emittedScript.Run(ctx, l.rdb, []string{tombstoneKey(shard, member), reservationsKey(shard)}, l.clock(), l.tombstone, member).Err(); err != nil {
		return fmt.Errorf("mark as emitted on redis: %w", err)
	}
	return nil
}
