package stores

import (
	"context"
	"testing"

	clickhousego "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/jackc/pgx/v5"
	goredis "github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tollgate-dev/tollgate/pkg/embedded/kafka"
)

func TestMain(m *testing.M) { Main(m) }

func TestEachTestGetsAnEmptyPostgresDatabase(t *testing.T) {
	for range 2 { // the same table twice: not the same database
		conn, err := pgx.Connect(t.Context(), Postgres(t))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(t.Context(), "CREATE TABLE t (a int)"); err != nil {
			t.Fatal(err)
		}
		if err := conn.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestEachTestGetsAnEmptyClickHouseDatabase(t *testing.T) {
	for range 2 {
		o, err := clickhousego.ParseDSN(ClickHouse(t).DSN)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := clickhousego.Open(o)
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.Exec(t.Context(), "CREATE TABLE t (a UInt64) ENGINE = MergeTree ORDER BY a"); err != nil {
			t.Fatal(err)
		}
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestEachTestGetsItsOwnBroker(t *testing.T) {
	for range 2 {
		s := Kafka(t, kafka.Topic{Name: "t", Partitions: 3})
		client, err := kgo.NewClient(kgo.SeedBrokers(s.Brokers()...), kgo.DefaultProduceTopic("t"))
		if err != nil {
			t.Fatal(err)
		}
		r, err := client.ProduceSync(t.Context(), &kgo.Record{Partition: 0, Value: []byte("v")}).First()
		if err != nil {
			t.Fatal(err)
		}
		if r.Offset != 0 {
			t.Fatalf("offset %d in a fresh broker", r.Offset)
		}
		client.Close()
	}
}

func TestEachTestGetsItsOwnRedis(t *testing.T) {
	for range 2 {
		o, err := goredis.ParseURL(Redis(t).URL())
		if err != nil {
			t.Fatal(err)
		}
		c := goredis.NewClient(o)
		n, err := c.Incr(context.Background(), "k").Result()
		if err != nil || n != 1 {
			t.Fatalf("incr in a fresh server: %d, %v", n, err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
