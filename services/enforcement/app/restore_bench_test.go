package app

import (
	"database/sql"
	"flag"
	"runtime"
	"testing"
	"time"

	"github.com/tollgate-dev/tollgate/migrations"
	"github.com/tollgate-dev/tollgate/pkg/pgquota"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/testkit/realredis"
	"github.com/tollgate-dev/tollgate/pkg/testkit/stores"
	"github.com/tollgate-dev/tollgate/services/enforcement/internal/clickhouseusage"
)

var restoreUsers = flag.Int("restore-users", 100_000, "how many users BenchmarkRestore restores")

// BenchmarkRestore restores users with ten events each, spread over the last day, on real stores. Yardsticks: reading the same usage from the ledger, and the
// same plans from Postgres, and doing nothing with either. go test ./app -run xxx -bench Restore -benchtime 1x
func BenchmarkRestore(b *testing.B) {
	l, pg, redisURL := newLedger(b), stores.Postgres(b), "redis://"+realredis.Start(b).Addr
	db, err := sql.Open("pgx", pg)
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	if err := migrations.Postgres(b.Context(), db); err != nil {
		b.Fatal(err)
	}
	// Half of the users have a quota of their own.
	if _, err := db.ExecContext(b.Context(), `INSERT INTO quotas (subject, org_id, tier, tpd_limit, suspended, version, created_at, updated_at)
		SELECT 'user:u' || n, '', 'plus', 1000000, false, 1, now(), now() FROM generate_series(0, $1 - 1, 2) AS n`, *restoreUsers); err != nil {
		b.Fatal(err)
	}
	// Events and the sums of their quarters, minutes and days, as a writer would put them there.
	if _, err := l.db.ExecContext(b.Context(), `INSERT INTO usage_ledger (grain, event_id, period, user_id, tier, model, events, requests, input_tokens, output_tokens, schema_version, request_id,
			requested_model, timestamp, outcome, reservation, kafka_topic, kafka_offset, generation)
		SELECT grain, if(grain = 'event', generateUUIDv4(), toUUID('00000000-0000-0000-0000-000000000000')),
			multiIf(grain = 'minute', toStartOfMinute(at), grain = 'quarter', toStartOfFifteenMinutes(at), grain = 'day', toDateTime(toStartOfDay(at), 'UTC'), toDateTime(0, 'UTC')),
			concat('u', toString(number % ?)), 'plus', 'grok-2', 1, 1, 20000, 30000, 1, generateUUIDv4(), 'grok-2', at, 'completed', 'held', 'usage.records.v1', number, 1
		FROM (SELECT number, now64(3, 'UTC') - toIntervalSecond(number * 7919 % 86400) AS at FROM numbers(?)) ARRAY JOIN ['event', 'minute', 'quarter', 'day'] AS grain`, *restoreUsers, *restoreUsers*10); err != nil {
		b.Fatal(err)
	}
	cfg := RestoreConfig{RedisURL: redisURL, PostgresURL: pg, ClickHouseURL: l.dsn}
	perUser := func(b *testing.B) {
		b.ReportMetric(float64(*restoreUsers)*float64(b.N)/b.Elapsed().Seconds(), "users/s")
	}

	b.Run("ledger only", func(b *testing.B) {
		book, err := clickhouseusage.Open(l.dsn)
		if err != nil {
			b.Fatal(err)
		}
		defer book.Close()
		for b.Loop() {
			if err := book.Each(b.Context(), clickhouseusage.User, clickhouseusage.Span{From: time.Now().Add(-DefaultLookback), Now: time.Now()}, func(clickhouseusage.Usage) error { return nil }); err != nil {
				b.Fatal(err)
			}
		}
		perUser(b)
	})
	b.Run("plans only", func(b *testing.B) {
		quotas, err := pgquota.Open(b.Context(), pg, pgquota.Options{})
		if err != nil {
			b.Fatal(err)
		}
		defer quotas.Close()
		subs := make([]subject.Subject, batchPayers)
		for i := range subs {
			subs[i] = subject.Subject{Kind: subject.User, ID: "u1"}
		}
		for b.Loop() {
			for range *restoreUsers / batchPayers {
				if _, err := quotas.Plans(b.Context(), subs); err != nil {
					b.Fatal(err)
				}
			}
		}
		perUser(b)
	})
	restore := func(b *testing.B) {
		var most uint64
		cfg.Progress = func(done, _ int64) {
			if done%20_000 == 0 {
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				most = max(most, m.HeapInuse)
			}
		}
		for b.Loop() {
			r, err := RestoreBuckets(b.Context(), cfg)
			if err != nil || r.Scopes != int64(*restoreUsers) {
				b.Fatal(r, err)
			}
			b.ReportMetric(float64(r.Restored), "restored")
		}
		perUser(b)
		b.ReportMetric(float64(most)/(1<<20), "MiB-heap")
	}
	b.Run("into an empty Redis", restore)
	b.Run("again", restore)
	b.Run("compare", func(b *testing.B) {
		for b.Loop() {
			if r, err := CompareBuckets(b.Context(), CompareConfig{RestoreConfig: cfg}); err != nil || !r.Agree() {
				b.Fatal(r, err)
			}
		}
		perUser(b)
	})
}
