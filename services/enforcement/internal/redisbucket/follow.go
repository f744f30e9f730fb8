package redisbucket

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/subject"
)

// followTries is how often a call goes on when a payer moves in the middle of it.
const followTries = 5

// correction is what the end of a request, or its going on, changes in one scope that lies in another shard.
type correction struct {
	scope      limit.Scope // whole; Own: by the limits of its state. Without limits only its leases change
	spread     limit.Spread
	amounts    limit.Amounts // charged, or given back
	age        time.Duration // how long ago amounts were used
	drop, take int64         // leases, ends in s; 0: none
	anyway     bool          // what has not come to where it goes yet is passed over
	keep       bool          // buckets keep their capacity
	fit        bool          // only if there is room
	once       string        // names the correction, so that a repeat changes nothing
}

// corrected tells what came of a correction. lacking is what had no room: then nothing was charged in that shard.
type corrected struct {
	dropped bool
	lacking []lacking
	charged []charge
}

type lacking struct {
	scope limit.Scope
	extra limit.Amounts
	found limit.Observed
}

// charge can be given back.
type charge struct {
	shard int
	correction
}

// word tells of a move, as bucket.lua has it.
func word(m limit.Move) string {
	texts := make([]string, len(m.To))
	for i, shard := range m.To {
		texts[i] = strconv.Itoa(shard)
	}
	return fmt.Sprintf("%s %s %d", joined(texts), m.Fence.Name, m.Fence.Version)
}

func parseWord(text string) (m limit.Move, err error) {
	parts := strings.Split(text, " ")
	if len(parts) != 3 {
		return m, fmt.Errorf("%q tells of no move", text)
	}
	for t := range strings.SplitSeq(parts[0], ",") {
		shard, err := strconv.Atoi(t)
		if err != nil {
			return m, fmt.Errorf("%q tells of no move: %w", text, err)
		}
		m.To = append(m.To, shard)
	}
	m.Fence.Name = parts[1]
	if m.Fence.Version, err = strconv.ParseInt(parts[2], 10, 64); err != nil {
		return m, fmt.Errorf("%q tells of no move: %w", text, err)
	}
	return m, nil
}

// parseFrozen reads what a scope has left: where it is, by which move it was frozen, and its state.
func parseFrozen(text string) (to, by, state string, err error) {
	parts := strings.SplitN(text, ";", 3)
	if len(parts) != 3 || parts[0] == "" || parts[0][0] != '>' {
		return "", "", "", fmt.Errorf("%q tells of no move", text)
	}
	return parts[0][1:], parts[1], parts[2], nil
}

// follow makes a correction where a scope has moved to. If that is several shards each has its part, and the first one that has the lease drops
// it. A *limit.StaleError: the move has not been made yet.
func (l *Limiter) follow(ctx context.Context, where string, c correction) (corrected, error) {
	move, err := parseWord(where)
	if err != nil {
		return corrected{}, err
	}
	var all corrected
	for i, shard := range move.To {
		part := c
		part.amounts = c.amounts.Part(i, len(move.To))
		if c.once != "" {
			part.once = fmt.Sprintf("%s.%d", c.once, i) // two parts may come together in one place
		}
		if all.dropped {
			part.drop = 0
		}
		if i > 0 {
			part.take = 0
		}
		one, err := l.correct(ctx, shard, markKey(shard, c.scope.Name, move.Fence), part)
		all.charged = append(all.charged, one.charged...)
		all.lacking = append(all.lacking, one.lacking...)
		all.dropped = all.dropped || one.dropped
		if err != nil {
			return all, err
		}
		if one.early && !c.anyway {
			return all, &limit.StaleError{Name: move.Fence.Name, Published: move.Fence.Version}
		}
	}
	return all, nil
}

// attempt is what came of a correction in one shard; early: the scope has not come there yet.
type attempt struct {
	corrected
	early bool
}

// correct makes a correction in a shard, or where the scope has moved to from there. mark is that of the move by which it should be there, if any.
func (l *Limiter) correct(ctx context.Context, shard int, mark string, c correction) (attempt, error) {
	s, p := c.spread.Shares([]limit.Scope{c.scope}, shard)[0], prefix(shard)
	keys, ttl := []string{p + "b:" + s.Name, mark, p + "a:" + c.once + ":" + s.Name}, any("")
	if mark == "" {
		keys[1] = keys[0]
	}
	if c.once != "" {
		ttl = limit.CarryFor.Milliseconds()
	}
	args := []any{l.clock(), mark != "", ttl, c.keep, c.fit, lease0(c.drop), lease0(c.take), c.amounts[limit.Requests], c.amounts[limit.Tokens],
		c.amounts[limit.InputTokens], c.amounts[limit.OutputTokens], c.age.Milliseconds()}
	reply, err := adjustScript.Run(ctx, l.rdb, keys, appendKinds(args, s)...).Slice()
	if err != nil {
		return attempt{}, err
	}
	n, err := integers(reply, 1)
	switch {
	case err != nil:
		return attempt{}, err
	case n[0] == -1:
		return attempt{early: true}, nil
	case n[0] == 0 && len(reply) == 2:
		next, err := l.follow(ctx, fmt.Sprint(reply[1]), c)
		return attempt{corrected: next}, err
	case n[0] == 1 && len(reply) == 2: // by an earlier call
		return attempt{corrected: corrected{dropped: reply[1] == int64(1)}}, nil
	case n[0] == 1 && len(reply) == 6:
	default:
		return attempt{}, errShape
	}
	if n, err = integers(reply, 5); err != nil {
		return attempt{}, err
	}
	out := attempt{corrected: corrected{dropped: n[1] == 1}}
	if n[2] == 1 {
		out.charged = []charge{{shard, c}}
		return out, nil
	}
	found, err := observedIn(s, n[3], reply[4:])
	out.lacking = []lacking{{s, c.amounts, found}}
	return out, err
}

// undo gives charges back. What can't be given back drains away.
func (l *Limiter) undo(ctx context.Context, charged []charge) {
	for _, c := range charged {
		back := c.correction
		back.amounts, back.drop, back.take, back.fit = limit.Amounts{}.Minus(c.amounts), 0, 0, false
		_, _ = l.correct(ctx, c.shard, "", back)
	}
}

func lease0(second int64) any {
	if second == 0 {
		return ""
	}
	return second
}

func joined(texts []string) string { return strings.Join(texts, ",") }

// scopeOf gives the scope with an id, as the caller has it or else by the limits of its state.
func scopeOf(id string, given []limit.Scope) limit.Scope {
	for _, s := range given {
		if scopeID(s) == id {
			return s
		}
	}
	return limit.OwnScope(bare(id))
}

// bare is a scope of which only the leases matter.
func bare(id string) limit.Scope {
	kind, name, _ := strings.Cut(id, "=")
	return limit.Scope{Kind: limit.ScopeKind(kind), Name: name}
}

// lentSlots gives the scopes of a reservation whose slots other shards hold, and which.
func lentSlots(held string) map[string]int {
	out := map[string]int{}
	for id := range strings.SplitSeq(held, ",") {
		if rest, lent := strings.CutPrefix(id, "~"); lent {
			at := strings.LastIndexByte(rest, '#')
			if shard, err := strconv.Atoi(rest[at+1:]); err == nil && at > 0 {
				out[rest[:at]] = shard
			}
		}
	}
	return out
}

// Find implements limit.Lender, in one round trip.
func (l *Limiter) Find(ctx context.Context, s subject.Subject, requestID uuid.UUID, shards []int) (int, bool, error) {
	now, member := time.Now().UnixMilli(), memberOf(s, requestID)
	if l.now != nil {
		now = l.now().UnixMilli()
	}
	pipe := l.rdb.Pipeline()
	found := make([][2]*redis.StringCmd, len(shards))
	for i, shard := range shards { // in this order: what ends meanwhile goes from the one to the other
		found[i] = [2]*redis.StringCmd{redis.NewStringCmd(ctx, "HGET", reservationsKey(shard), member), redis.NewStringCmd(ctx, "GET", tombstoneKey(shard, member))}
		_, _ = pipe.Process(ctx, found[i][0]), pipe.Process(ctx, found[i][1]) // a pipeline fails when it is sent
	}
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return 0, false, fmt.Errorf("look for a request on redis: %w", err)
	}
	for i, both := range found {
		for _, cmd := range both {
			text, err := cmd.Result()
			if err != nil && !errors.Is(err, redis.Nil) {
				return 0, false, fmt.Errorf("look for a request on redis: %w", err)
			}
			if err == nil && remembered(text, now) {
				return shards[i], true, nil
			}
		}
	}
	return 0, false, nil
}

// remembered tells whether a reservation is not forgotten yet, by its text (prelude.lua).
func remembered(text string, now int64) bool {
	var state string
	var at, till, known int64
	if _, err := fmt.Sscanf(text, "%s %d %d %d", &state, &at, &till, &known); err != nil {
		return false
	}
	if state == "H" {
		now -= till
	}
	return known > now
}
