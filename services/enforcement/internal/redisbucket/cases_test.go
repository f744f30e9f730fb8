package redisbucket

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/limit/limittest"
)

// Case B56 on real Redis: fifty rounds, at fractions of a millisecond's worth of tokens too. Waiting a millisecond less never suffices.
func TestB56WaitingExactlyAsAdvisedPassesEveryTime(t *testing.T) {
	clock := limittest.NewClock()
	l := realServer(t)(t, clock).Limiter
	for name, c := range map[string]struct {
		limit.Limit
		first, each int64
		longest     time.Duration
	}{
		"rpm 7":             {limit.Limit{Counted: limit.Requests, Capacity: 7, Window: time.Minute}, 7, 1, 8572 * time.Millisecond},
		"250 of 1000 a min": {limit.Limit{Counted: limit.Tokens, Capacity: 1000, Window: time.Minute}, 900, 250, 15 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			scope := limit.Scope{Kind: limit.ScopeUser, Name: "user:" + name[:3], Limits: []limit.Limit{c.Limit}}
			check := func(n int64) limit.Decision {
				d, err := l.Check(context.Background(), limit.CheckRequest{Shard: 5, Subject: u1, RequestID: uuid.New(), Scopes: []limit.Scope{scope},
					Cost: limit.Amounts{limit.Requests: n, limit.Tokens: n}})
				if err != nil {
					t.Fatal(err)
				}
				return d
			}
			if d := check(c.first); !d.Allowed {
				t.Fatal(d)
			}
			for round := range 50 {
				d := check(c.each)
				if d.Allowed || d.RetryAfter <= 0 || d.RetryAfter > c.longest {
					t.Fatalf("round %d: %+v", round, d)
				}
				if c.each == 250 && round == 0 && d.RetryAfter != 9*time.Second {
					t.Errorf("with 100 left, 250 tokens wait for %s, want the time of 150 tokens", d.RetryAfter)
				}
				clock.Add(d.RetryAfter - time.Millisecond)
				if early := check(c.each); early.Allowed || early.RetryAfter != time.Millisecond {
					t.Fatalf("round %d: a millisecond early: %+v", round, early)
				}
				clock.Add(time.Millisecond)
				if d := check(c.each); !d.Allowed {
					t.Fatalf("round %d: after the advised wait: %+v", round, d)
				}
				clock.Add(time.Duration(round*37%23) * time.Millisecond)
			}
		})
	}
}
