package redisbucket

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/limit"
)

const moved = 4 // what settle.lua and consume.lua answer if scopes have moved away that were not corrected there

var statuses = map[int64]limit.SettleStatus{1: limit.Settled, 2: limit.AlreadySettled, 3: limit.Unknown}

// Settle implements limit.Limiter.
func (l *Limiter) Settle(ctx context.Context, r limit.SettleRequest) (limit.Settlement, error) {
	if err := r.Validate(); err != nil {
		return limit.Settlement{}, err
	}
	mode := "any"
	if r.Known {
		mode = "known"
	}
	s, err := l.settle(ctx, r, mode)
	if err != nil {
		return limit.Settlement{}, fmt.Errorf("settle on redis: %w", err)
	}
	return s, nil
}

// Cancel implements limit.Limiter.
func (l *Limiter) Cancel(ctx context.Context, r limit.CancelRequest) (bool, error) {
	as := limit.SettleRequest{Shard: r.Shard, Spread: r.Spread, Subject: r.Subject, RequestID: r.RequestID, Scopes: r.Scopes, Meta: r.Meta, Anyway: true}
	if err := as.Validate(); err != nil {
		return false, err
	}
	s, err := l.settle(ctx, as, "cancel")
	if err != nil {
		return false, fmt.Errorf("cancel on redis: %w", err)
	}
	return s.Status == limit.Settled, nil
}

// settle ends a reservation. Scopes whose payer has moved are corrected where they lie first, each once, and then the rest in one step: if it is
// broken off in between, a repeat goes on.
func (l *Limiter) settle(ctx context.Context, r limit.SettleRequest, mode string) (limit.Settlement, error) {
	member, scopes, done := memberOf(r.Subject, r.RequestID), r.Spread.Shares(r.Scopes, r.Shard), []string(nil)
	for range followTries {
		args := appendCounted([]any{l.clock(), len(scopes), limit.Retention.Milliseconds(), member, r.Actual[limit.Requests], r.Actual[limit.Tokens],
			r.Actual[limit.InputTokens], r.Actual[limit.OutputTokens], r.Meta, limit.EmitGrace.Milliseconds(), mode, r.Age.Milliseconds(), joined(done)}, scopes)
		reply, err := settleScript.Run(ctx, l.rdb, endKeys(r.Shard, scopes, member, nil), args...).Slice()
		if err != nil {
			return limit.Settlement{}, err
		}
		n, err := integers(reply, 7)
		if err != nil {
			return limit.Settlement{}, err
		}
		if n[0] != moved {
			return l.settled(ctx, r, reply, done)
		}
		ids, err := l.correctMoved(ctx, r, member, n, reply)
		if err != nil {
			return limit.Settlement{}, err
		}
		done = append(done, ids...)
	}
	return limit.Settlement{}, errMoving
}

// correctMoved corrects the scopes that a settle's answer names as moved, and tells which they are.
func (l *Limiter) correctMoved(ctx context.Context, r limit.SettleRequest, member string, n []int64, reply []any) (ids []string, err error) {
	if len(reply) < 13 || (len(reply)-13)%3 != 0 {
		return nil, errShape
	}
	reserved := limit.Amounts{limit.Requests: n[3], limit.Tokens: n[4], limit.InputTokens: n[5], limit.OutputTokens: n[6]}
	leaseEnd, ok1 := reply[10].(int64)
	if !ok1 {
		return nil, errShape
	}
	for at := 13; at < len(reply); at += 3 {
		id, ok1 := reply[at].(string)
		where, ok2 := reply[at+2].(string)
		if !ok1 || !ok2 {
			return nil, errShape
		}
		c := correction{scope: scopeOf(id, r.Scopes), spread: r.Spread, amounts: r.Actual, age: r.Age, keep: true, anyway: r.Anyway}
		if n[2] != 0 { // a request that is unknown has nothing by which a repeat could be told from another
			c.once = fmt.Sprintf("%s:%d", member, n[2])
		}
		if reply[at+1] == int64(1) {
			c.amounts, c.age, c.drop = r.Actual.Minus(reserved), 0, leaseEnd/1000
		}
		if _, err := l.follow(ctx, where, c); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// settled reads the answer to a settle, and gives slots back that other shards have lent, but those of scopes that were corrected elsewhere. If that fails they
// return when their leases end.
func (l *Limiter) settled(ctx context.Context, r limit.SettleRequest, reply []any, done []string) (limit.Settlement, error) {
	n, err := integers(reply, 7)
	if err != nil {
		return limit.Settlement{}, err
	}
	if len(reply) != 13 {
		return limit.Settlement{}, errShape
	}
	checkMeta, ok1 := reply[7].(string)
	meta, ok2 := reply[8].(string)
	emitted, ok3 := reply[9].(int64)
	leaseWas, ok4 := reply[10].(int64)
	charged, ok5 := reply[11].(string)
	held, ok6 := reply[12].(string)
	status, ok7 := statuses[n[0]]
	if !ok1 || !ok2 || !ok3 || !ok4 || !ok5 || !ok6 || !ok7 {
		return limit.Settlement{}, errShape
	}
	s := limit.Settlement{Status: status, At: time.UnixMilli(n[1]).UTC(), CheckMeta: checkMeta, Meta: meta, Emitted: emitted == 1, Shard: r.Shard,
		Reserved: limit.Amounts{limit.Requests: n[3], limit.Tokens: n[4], limit.InputTokens: n[5], limit.OutputTokens: n[6]}}
	if n[2] != 0 {
		s.CheckedAt = time.UnixMilli(n[2]).UTC()
	}
	if leaseWas != 0 {
		s.LeaseWas = time.UnixMilli(leaseWas).UTC()
	}
	if status == limit.AlreadySettled || r.Known && status == limit.Unknown {
		return s, nil
	}
	s.Charged = make([]bool, len(r.Scopes))
	for i := range min(len(charged), len(s.Charged)) {
		s.Charged[i] = charged[i] == '1'
	}
	for id, shard := range lentSlots(held) {
		if slices.Contains(done, id) {
			continue
		}
		_, _ = l.correct(ctx, shard, "", correction{scope: bare(id), drop: leaseWas / 1000, keep: true})
	}
	l.repay(ctx, r, s.Reserved, held, done)
	return s, nil
}

// repay gives back to other shards what they have lent and what was not used, as the script has left it to them. What can't be given back drains there.
func (l *Limiter) repay(ctx context.Context, r limit.SettleRequest, reserved limit.Amounts, held string, done []string) {
	repaid := map[string][]int64{} // by scope and limit
	for _, loan := range parseLoans(held) {
		i := slices.IndexFunc(r.Scopes, func(s limit.Scope) bool { return scopeID(s) == loan.scope })
		if i < 0 || slices.Contains(done, loan.scope) {
			continue
		}
		s := r.Spread.Shares(r.Scopes[i:i+1], loan.shard)[0]
		if s.Own() {
			continue
		}
		if repaid[loan.scope] == nil {
			repaid[loan.scope] = make([]int64, len(s.Limits))
		}
		line, some := limit.Line{Amounts: make([]int64, len(s.Limits))}, false
		for j, lim := range s.Limits {
			n := min(loan.amounts[limitID(lim)], reserved[lim.Counted]-r.Actual[lim.Counted]-repaid[loan.scope][j])
			if n > 0 {
				line.Amounts[j], some = -n, true
				repaid[loan.scope][j] += n
			}
		}
		if some {
			t := limit.TransferRequest{Shard: loan.shard, Keep: true}
			t.Add(s, line)
			_, _ = l.Transfer(ctx, t)
		}
	}
}

var errMoving = errors.New("its payer moves faster than it can be followed")
