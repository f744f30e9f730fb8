package app

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"testing"
	"time"

	clickhousego "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tollgate-dev/tollgate/migrations"
	"github.com/tollgate-dev/tollgate/pkg/clickhouseledger"
	"github.com/tollgate-dev/tollgate/pkg/pgquota"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/testkit/stores"
	"github.com/tollgate-dev/tollgate/pkg/tier"
	"github.com/tollgate-dev/tollgate/pkg/usage"
)

// ledger is a ClickHouse that holds what a test puts there.
type ledger struct {
	t   testing.TB
	dsn string
	db  *sql.DB

	mu     sync.Mutex
	offset int64
}

func newLedger(t testing.TB) *ledger {
	t.Helper()
	ch := stores.ClickHouse(t)
	o, err := clickhousego.ParseDSN(ch.DSN)
	if err != nil {
		t.Fatal(err)
	}
	l := &ledger{t: t, dsn: ch.DSN, db: clickhousego.OpenDB(o)}
	t.Cleanup(func() { _ = l.db.Close() })
	if err := migrations.ClickHouse(t.Context(), l.db); err != nil {
		t.Fatal(err)
	}
	return l
}

// add stores records as the consumer does.
func (l *ledger) add(rs ...usage.Record) {
	l.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	events := make([]clickhouseledger.Event, len(rs))
	for i, r := range rs {
		l.offset++
		events[i] = clickhouseledger.Event{Record: r, Topic: usage.Topic, Offset: l.offset}
	}
	w, err := clickhouseledger.Open(l.dsn)
	if err != nil {
		l.t.Fatal(err)
	}
	defer w.Close()
	if _, err := w.Store(context.Background(), events); err != nil {
		l.t.Fatal(err)
	}
}

// used is a record of so many tokens by a user, some time ago, changed as a test likes.
func usedAgo(user string, ago time.Duration, tokens int64, change ...func(*usage.Record)) usage.Record {
	r := usage.Record{EventID: uuid.New(), SchemaVersion: 1, UserID: user, Tier: "free", RequestID: uuid.New(), RequestedModel: "grok-2", Model: "grok-2", InputTokens: tokens,
		Timestamp: usage.At(time.Now().Add(-ago)), Outcome: usage.Completed, Reservation: usage.Held}
	for _, f := range change {
		f(&r)
	}
	return r
}

// pump stores everything that is in the log and will be, until the test ends. settled waits until n distinct usages are stored.
func (l *ledger) pump(brokers []string) (settled func(n int)) {
	l.t.Helper()
	c, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(usage.Topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		l.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	var mu sync.Mutex
	seen := map[uuid.UUID]bool{}
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			var rs []usage.Record
			f := c.PollFetches(ctx)
			f.EachRecord(func(r *kgo.Record) {
				rec, err := usage.Decode(r.Value)
				if err != nil {
					l.t.Error(err)
					return
				}
				rs = append(rs, rec)
			})
			l.add(rs...)
			mu.Lock()
			for _, r := range rs {
				if !r.WasRateLimited {
					seen[r.EventID] = true
				}
			}
			mu.Unlock()
		}
	}()
	l.t.Cleanup(func() { cancel(); <-done; c.Close() })
	return func(n int) {
		l.t.Helper()
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			mu.Lock()
			got := len(seen)
			mu.Unlock()
			if got >= n {
				return
			}
			if time.Now().After(deadline) {
				l.t.Fatalf("%d usages in the ledger, want %d", got, n)
			}
		}
	}
}

func (b *backends) restoreConfig(l *ledger) RestoreConfig {
	return RestoreConfig{RedisURL: b.redis, PostgresURL: b.postgres, ClickHouseURL: l.dsn}
}

func (b *backends) restoreFrom(t *testing.T, l *ledger) RestoreReport {
	t.Helper()
	r, err := RestoreBuckets(t.Context(), b.restoreConfig(l))
	if err != nil {
		t.Fatal(err)
	}
	if r.Scopes != r.Restored+r.LeftAlone+r.Drained {
		t.Errorf("%+v does not add up", r)
	}
	return r
}

// lose empties Redis.
func (b *backends) lose(t *testing.T) {
	t.Helper()
	if err := b.rdb.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
}

// left is what remains of a dimension, by the status of "user/u1" say.
func (s *service) left(who, dimension string) float64 {
	s.t.Helper()
	code, v := s.send("GET", "/internal/rate-limit/status/"+who, "")
	rem, _ := v["remaining"].(map[string]any)
	n, ok := rem[dimension].(float64)
	if code != 200 || !ok {
		s.t.Fatal(fmt.Sprint(who, " ", dimension, ": ", code, v))
	}
	return n
}

func suspend(id string, own tier.Overrides) pgquota.Change {
	org, suspended := "", true
	return pgquota.Change{Subject: subject.Subject{Kind: subject.User, ID: id}, OrgID: &org, Own: unlimited(own), Suspended: &suspended, Actor: "test"}
}
