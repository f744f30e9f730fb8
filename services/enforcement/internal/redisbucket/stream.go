package redisbucket

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/subject"
)

// Consume implements limit.Limiter. Scopes whose payer has moved pay where they lie first, and then the rest in one step; if that refuses, they have
// it back.
func (l *Limiter) Consume(ctx context.Context, r limit.ConsumeRequest) (limit.Consumption, error) {
	if err := r.Validate(); err != nil {
		return limit.Consumption{}, err
	}
	c, err := l.consume(ctx, r)
	if err != nil {
		return limit.Consumption{}, fmt.Errorf("consume on redis: %w", err)
	}
	return c, nil
}

func (l *Limiter) consume(ctx context.Context, r limit.ConsumeRequest) (limit.Consumption, error) {
	member, here := memberOf(r.Subject, r.RequestID), r
	here.Scopes = r.Spread.Shares(r.Scopes, r.Shard)
	var there elsewhere
	for range followTries {
		args := []any{l.clock(), len(r.Scopes), len(r.Fences), leaseMillis(r.Lease), limit.Retention.Milliseconds(), member, r.Tokens, 0, lease0(there.until),
			joined(there.ids), there.extra[limit.Tokens], there.extra[limit.OutputTokens], len(there.lacking) > 0, joined(loansOf(here.Scopes))}
		for _, f := range r.Fences {
			args = append(args, f.Version)
		}
		args = appendLent(appendCounted(args, here.Scopes), 7, here.Scopes)
		reply, err := consumeScript.Run(ctx, l.rdb, endKeys(r.Shard, here.Scopes, member, r.Fences), args...).Slice()
		if err != nil {
			l.undo(ctx, there.charged)
			return limit.Consumption{}, err
		}
		if len(reply) == 0 || reply[0] != int64(moved) {
			c, held, err := consumption(here, reply)
			if err != nil || !c.Allowed {
				l.undo(ctx, there.charged)
			}
			if err != nil || c.Status != limit.ReservationOpen {
				return c, err
			}
			for _, w := range there.lacking {
				c.Refuse(w.scope, w.extra, w.found)
			}
			for id, shard := range lentSlots(held) { // if this fails the slot returns when the old lease ends
				if !slices.Contains(there.ids, id) {
					_, _ = l.correct(ctx, shard, "", correction{scope: bare(id), drop: c.LeaseWas.Unix(), take: c.LeaseUntil.Unix()})
				}
			}
			return c, nil
		}
		if err := l.pay(ctx, r, reply, &there); err != nil {
			l.undo(ctx, there.charged)
			return limit.Consumption{}, err
		}
	}
	l.undo(ctx, there.charged)
	return limit.Consumption{}, errMoving
}

// elsewhere is what scopes that have moved have paid for a consume, all of them the same, and its lease's new end.
type elsewhere struct {
	ids     []string
	extra   limit.Amounts
	until   int64 // s
	charged []charge
	lacking []lacking
}

// pay has the scopes that a consume's answer names as moved pay what is still wanted of each, all of them or none, and renews their leases.
func (l *Limiter) pay(ctx context.Context, r limit.ConsumeRequest, reply []any, there *elsewhere) error {
	n, err := integers(reply, 4)
	if err != nil {
		return err
	}
	if len(reply) < 10 || len(reply)%2 != 0 {
		return errShape
	}
	extra, err := integers(reply[5:], 2)
	if err != nil {
		return errShape
	}
	l.undo(ctx, there.charged) // by an answer that is old
	renewed := there.ids
	*there = elsewhere{extra: limit.Amounts{limit.Tokens: extra[0], limit.OutputTokens: extra[1]}, until: n[2] / 1000}
	for at := 8; at < len(reply); at += 2 {
		id, where := fmt.Sprint(reply[at]), fmt.Sprint(reply[at+1])
		c := correction{scope: scopeOf(id, r.Scopes), spread: r.Spread, amounts: there.extra}
		c.fit, c.keep = !c.scope.Own(), c.scope.Own()
		if !slices.Contains(renewed, id) {
			c.drop, c.take = n[3]/1000, there.until
		}
		done, err := l.follow(ctx, where, c)
		there.charged, there.lacking = append(there.charged, done.charged...), append(there.lacking, done.lacking...)
		if err != nil {
			return err
		}
		there.ids = append(there.ids, id)
	}
	if len(there.lacking) > 0 {
		l.undo(ctx, there.charged)
		there.charged = nil
	}
	return nil
}

// consumption reads the answer to a consume, and the scopes that its reservation holds.
func consumption(r limit.ConsumeRequest, reply []any) (c limit.Consumption, held string, err error) {
	n, err := integers(reply, 3)
	if err != nil {
		return limit.Consumption{}, "", err
	}
	if n[0] == -1 {
		return limit.Consumption{}, "", &limit.StaleError{Name: r.Fences[n[1]-1].Name, Published: n[2]}
	}
	if len(reply) != 8+3*len(r.Scopes) {
		return limit.Consumption{}, "", errShape
	}
	if n, err = integers(reply, 4); err != nil {
		return limit.Consumption{}, "", err
	}
	extra, err := integers(reply[5:], 2)
	meta, ok1 := reply[4].(string)
	held, ok2 := reply[7].(string)
	if err != nil || !ok1 || !ok2 {
		return limit.Consumption{}, "", errShape
	}
	pays, found := make([]bool, len(r.Scopes)), make([]limit.Observed, len(r.Scopes))
	for i, s := range r.Scopes {
		pays[i] = reply[8+3*i] == int64(1)
		if found[i], err = observedIn(s, n[1], reply[9+3*i:]); err != nil {
			return limit.Consumption{}, "", err
		}
	}
	c = limit.ConcludeConsume(r, limit.Amounts{limit.Tokens: extra[0], limit.OutputTokens: extra[1]}, pays, n[0] != 0, time.UnixMilli(n[1]).UTC(), found)
	switch n[0] {
	case 2:
		c.Status, c.Allowed = limit.ReservationEnded, false
	case 3:
		c.Status, c.Allowed = limit.ReservationUnknown, false
	default:
		c.LeaseUntil, c.LeaseWas, c.CheckMeta = time.UnixMilli(n[2]).UTC(), time.UnixMilli(n[3]).UTC(), meta
	}
	return c, held, nil
}

// observedIn reads a scope's open leases and its state, the next two values of a script's answer.
func observedIn(s limit.Scope, now int64, reply []any) (limit.Observed, error) {
	open, ok1 := reply[0].(int64)
	state, ok2 := reply[1].(string)
	if !ok1 || !ok2 {
		return limit.Observed{}, errShape
	}
	return observed(s, now, open, state)
}

// appendLent adds what other shards lend to each limit, if any do, and notes at args[at] how many arguments come before.
func appendLent(args []any, at int, scopes []limit.Scope) []any {
	before := len(args)
	for _, s := range scopes {
		lent := s.Lent()
		for j := range s.Limits {
			if lent == nil {
				args = append(args, 0)
				continue
			}
			args[at] = before
			args = append(args, lent[j])
		}
	}
	if args[at] == 0 {
		return args[:before]
	}
	return args
}

// Transfer implements limit.Lender.
func (l *Limiter) Transfer(ctx context.Context, r limit.TransferRequest) (limit.Transferred, error) {
	if err := r.Validate(); err != nil {
		return limit.Transferred{}, err
	}
	p, keys, args := prefix(r.Shard), make([]string, len(r.Scopes)), []any{l.clock(), len(r.Scopes), r.Keep}
	for i, s := range r.Scopes {
		line := r.Lines[i]
		keys[i] = p + "b:" + s.Name
		args = appendLimits(append(args, s.Slots), s.Limits, func(j int) int64 { return line.Amounts[j] })
		args = append(args, secondOf(line.Drop), secondOf(line.Take), line.Debt)
	}
	reply, err := transferScript.Run(ctx, l.rdb, keys, args...).Slice()
	if err == nil {
		var t limit.Transferred
		if t, err = transferred(r.Scopes, reply); err == nil {
			return t, nil
		}
	}
	return limit.Transferred{}, fmt.Errorf("transfer on redis: %w", err)
}

// secondOf is the end of a lease as a scope's state has it.
func secondOf(t time.Time) any {
	if t.IsZero() {
		return ""
	}
	return t.Unix()
}

func transferred(scopes []limit.Scope, reply []any) (limit.Transferred, error) {
	now, err := integers(reply, 1)
	if err != nil {
		return limit.Transferred{}, err
	}
	t := limit.Transferred{At: time.UnixMilli(now[0]).UTC(), Amounts: make([][]int64, len(scopes)), Slots: make([]bool, len(scopes)), Found: make([]limit.Observed, len(scopes))}
	at := 1
	for i, s := range scopes {
		if len(reply) < at+3+len(s.Limits) {
			return t, errors.New("the script's answer has another shape")
		}
		t.Slots[i] = reply[at] == int64(1)
		if t.Found[i], err = observedIn(s, now[0], reply[at+1:]); err != nil {
			return t, err
		}
		texts := make([]string, len(s.Limits))
		for j := range texts {
			texts[j] = fmt.Sprint(reply[at+3+j])
		}
		if t.Amounts[i], err = numbers(texts); err != nil {
			return t, err
		}
		at += 3 + len(s.Limits)
	}
	return t, nil
}

// dueValues is how many values due.lua answers for each ended reservation.
const dueValues = 8

// lookAt is how many reservations due.lua looks at in one step, about: Redis does nothing else meanwhile.
const lookAt = 200

// Due implements limit.Limiter. It looks at all open reservations of the shard unless it has found enough before.
func (l *Limiter) Due(ctx context.Context, r limit.DueRequest) ([]limit.Due, error) {
	out := []limit.Due{}
	for cursor := int64(0); len(out) < r.Most; {
		reply, err := dueScript.Run(ctx, l.rdb, []string{reservationsKey(r.Shard)}, l.clock(), cursor, lookAt, limit.EmitGrace.Milliseconds(),
			limit.Retention.Milliseconds(), r.Meta).Slice()
		if err != nil {
			return out, fmt.Errorf("due on redis: %w", err)
		}
		n, err := integers(reply, 2)
		if err != nil || (len(reply)-2)%dueValues != 0 {
			return out, fmt.Errorf("due on redis: the script's answer has another shape: %w", err)
		}
		for at := 2; at < len(reply); at += dueValues {
			d, err := due(reply[at:at+dueValues], n[0])
			if err != nil {
				return out, fmt.Errorf("due on redis: %w", err)
			}
			out = append(out, d)
		}
		if cursor = n[1]; cursor == 0 {
			break
		}
	}
	return out, nil
}

func due(v []any, now int64) (limit.Due, error) {
	d := limit.Due{Settlement: limit.Settlement{Status: limit.AlreadySettled, At: time.UnixMilli(now).UTC()}}
	n, err := integers(v[1:], 5)
	if err != nil {
		return d, err
	}
	var ok1, ok2, ok3 bool
	var member string
	member, ok1 = v[0].(string)
	d.CheckMeta, ok2 = v[6].(string)
	d.Meta, ok3 = v[7].(string)
	if d.Subject, d.RequestID, err = parseMember(member); err != nil || !ok1 || !ok2 || !ok3 {
		return d, fmt.Errorf("the script's answer has another shape: %w", err)
	}
	if n[0] != 0 {
		d.CheckedAt = time.UnixMilli(n[0]).UTC()
	}
	d.Reserved = limit.Amounts{limit.Requests: n[1], limit.Tokens: n[2], limit.InputTokens: n[3], limit.OutputTokens: n[4]}
	return d, nil
}

// parseMember reads "<subject>:<request id>".
func parseMember(m string) (subject.Subject, uuid.UUID, error) {
	at := strings.LastIndexByte(m, ':')
	if at < 0 {
		return subject.Subject{}, uuid.Nil, fmt.Errorf("member %q names no request", m)
	}
	s, err := subject.Parse(m[:at])
	if err != nil {
		return subject.Subject{}, uuid.Nil, fmt.Errorf("member %q: %w", m, err)
	}
	id, err := uuid.Parse(m[at+1:])
	if err != nil {
		return subject.Subject{}, uuid.Nil, fmt.Errorf("member %q: %w", m, err)
	}
	return s, id, nil
}

// DueShards gives the shards that hold any reservation, due or not.
func (l *Limiter) DueShards(ctx context.Context) ([]int, error) {
	pipe := l.rdb.Pipeline()
	held := make([]*redis.IntCmd, subject.Shards)
	for shard := range held {
		held[shard] = pipe.Exists(ctx, reservationsKey(shard))
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, fmt.Errorf("look for ended reservations on redis: %w", err)
	}
	var shards []int
	for shard, n := range held {
		if n.Val() == 1 {
			shards = append(shards, shard)
		}
	}
	return shards, nil
}
