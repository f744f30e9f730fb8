package app

import (
	"database/sql"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"

	"github.com/tollgate-dev/tollgate/migrations"
	"github.com/tollgate-dev/tollgate/pkg/testkit/stores"
	"github.com/tollgate-dev/tollgate/pkg/usage"
)

func TestLostBucketsAreNamedThenRebuiltThenAgree(t *testing.T) {
	b, pg := ledgerBook(t), stores.Postgres(t)
	db, err := sql.Open("pgx", pg)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := migrations.Postgres(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	used := usage.Record{EventID: uuid.New(), SchemaVersion: 1, UserID: "spent", Tier: "free", RequestID: uuid.New(), RequestedModel: "grok-2", Model: "grok-2", InputTokens: 90_000,
		ReservedTokens: 90_000, Timestamp: usage.At(time.Now()), Outcome: usage.Completed, Reservation: usage.Held}
	b.store(t, []usage.Record{used})
	t.Cleanup(func() {
		if _, err := b.db.Exec("DELETE FROM usage_ledger WHERE user_id = 'spent'"); err != nil {
			t.Error(err)
		}
	})
	server := stores.Redis(t)
	env := []string{"TOLLGATE_REDIS_URL=" + server.URL(), "TOLLGATE_POSTGRES_URL=" + pg, "TOLLGATE_CLICKHOUSE_URL=" + b.dsn}

	code, stdout, stderr := run(t, env, "reconcile", "buckets")
	if code != 1 || !strings.Contains(stdout, "✗ user user:spent, tpd: bucket 0, ledger ") || !strings.Contains(stderr, "✗ 1 limits differ") {
		t.Errorf("exit %d: %s%s", code, stdout, stderr)
	}
	code, stdout, stderr = run(t, env, "rebuild", "buckets", "-o", "json")
	var got map[string]int64
	if err := json.Unmarshal([]byte(stdout), &got); code != 0 || err != nil || got["restored"] != 1 || got["left_alone"] != 0 {
		t.Errorf("exit %d: %s%s", code, stdout, stderr)
	}
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr})
	defer rdb.Close()
	if n := rdb.DBSize(t.Context()).Val(); n != 1 {
		t.Errorf("%d keys in Redis, want one bucket", n)
	}
	code, stdout, stderr = run(t, env, "rebuild", "buckets")
	if code != 0 || !strings.Contains(stdout, "0 restored, 1 had as much already") {
		t.Errorf("again: exit %d: %s%s", code, stdout, stderr)
	}
	code, stdout, stderr = run(t, env, "reconcile", "buckets")
	if code != 0 || !strings.Contains(stdout, "✓ no bucket has less than the ledger says") {
		t.Errorf("exit %d: %s%s", code, stdout, stderr)
	}
}

func TestBucketCommandsFailWithReason(t *testing.T) {
	env := []string{"TOLLGATE_REDIS_URL=redis://:secret@127.0.0.1:1", "TOLLGATE_POSTGRES_URL=postgres://u:secret@127.0.0.1:1/x", "TOLLGATE_CLICKHOUSE_URL=clickhouse://u:secret@127.0.0.1:1/tollgate"}
	for name, c := range map[string]struct {
		code int
		env  []string
		args []string
		want string
	}{
		"no addresses":     {2, nil, []string{"rebuild", "buckets"}, "TOLLGATE_REDIS_URL, TOLLGATE_POSTGRES_URL, TOLLGATE_CLICKHOUSE_URL: not set"},
		"short lookback":   {2, env, []string{"rebuild", "buckets", "--lookback", "1h"}, "--lookback must be at least 24h"},
		"no tolerance":     {2, env, []string{"reconcile", "buckets", "--tolerance", "0"}, "--tolerance must be above 0"},
		"stores away":      {4, env, []string{"rebuild", "buckets"}, "restore buckets: "},
		"nothing to build": {2, env, []string{"rebuild", "moon"}, "unknown command"},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := run(t, c.env, c.args...)
			if code != c.code || !strings.Contains(stderr, c.want) {
				t.Errorf("exit %d, want %d; stderr %q should hold %q", code, c.code, stderr, c.want)
			}
			if strings.Contains(stdout+stderr, "secret") {
				t.Errorf("a password was printed: %s%s", stdout, stderr)
			}
		})
	}
}
