package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/client"
	"github.com/tollgate-dev/tollgate/pkg/embedded"
	"github.com/tollgate-dev/tollgate/pkg/embedded/clickhouse"
	"github.com/tollgate-dev/tollgate/pkg/embedded/postgres"
	"github.com/tollgate-dev/tollgate/pkg/testkit/realkafka"
	"github.com/tollgate-dev/tollgate/pkg/testkit/realredis"
	"github.com/tollgate-dev/tollgate/pkg/testkit/upstream"
	"github.com/tollgate-dev/tollgate/pkg/usage"
	"github.com/tollgate-dev/tollgate/services/e2e/internal/chaos"
	"github.com/tollgate-dev/tollgate/services/e2e/internal/system"
)

func TestMain(m *testing.M) {
	embedded.MaybeRunChild()
	chaos.MaybeRunChild()
	code := m.Run()
	if err := errors.Join(running.stop(), lean.stop()); err != nil {
		fmt.Fprintln(os.Stderr, "e2e: stop:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// running is the whole path, started once for all tests of this binary: the real services on a real Redis, a real Kafka, PostgreSQL and
// ClickHouse.
var running wholePath

// lean is the path without consumer and ClickHouse, for measurements: these would share this machine's cores, which they do not in production.
var lean = wholePath{lean: true}

type wholePath struct {
	lean          bool
	once          sync.Once
	err           error
	stops         []func() error
	system        *system.System
	stores        system.Stores
	kafka         *realkafka.Server
	clickhouseDSN string
	upstream      *upstream.Server
}

// services gives the running services and clients of both APIs.
func services(t testing.TB) (*wholePath, *client.Enforcement, *client.Quotas) {
	t.Helper()
	return running.services(t)
}

func (p *wholePath) services(t testing.TB) (*wholePath, *client.Enforcement, *client.Quotas) {
	t.Helper()
	p.once.Do(func() { p.err = p.start() })
	if p.err != nil {
		t.Fatal(p.err)
	}
	e := client.NewEnforcement(p.system.EnforcementURL, system.ServiceToken)
	q := client.NewQuotas(p.system.QuotaURL, system.AdminToken)
	t.Cleanup(e.Close)
	t.Cleanup(q.Close)
	return p, e, q
}

func (p *wholePath) start() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute) // a first start may download servers
	defer cancel()
	dir, err := os.MkdirTemp("", "tollgate-e2e-")
	if err != nil {
		return err
	}
	p.stops = append(p.stops, func() error { return os.RemoveAll(dir) })
	host := system.NewHost(dir)
	p.stops = append(p.stops, func() error { host.Close(); return nil })
	var redis *realredis.Server
	var kafka *realkafka.Server
	err = host.Run(func(t testing.TB) {
		redis, kafka = realredis.Start(t), realkafka.Start(t)
		kafka.CreateTopic(t, usage.Topic, usage.Partitions, nil)
		kafka.CreateTopic(t, usage.DeadLetterTopic, 1, nil)
		kafka.CreateTopic(t, usage.QuotaTopic, usage.Partitions, map[string]string{"cleanup.policy": "compact"})
	})
	if err != nil {
		return err
	}
	pg, err := postgres.Start(ctx, postgres.Options{Dir: filepath.Join(dir, "postgres"), Unsafe: true, Log: os.Stderr})
	if err != nil {
		return err
	}
	p.stops = append(p.stops, func() error { return pg.Close(context.Background()) })
	p.kafka = kafka
	if !p.lean {
		ch, err := clickhouse.Start(ctx, clickhouse.Options{Dir: filepath.Join(dir, "clickhouse"), MaxMemory: 2 << 30, Log: os.Stderr})
		if err != nil {
			return err
		}
		p.stops = append(p.stops, func() error { return ch.Close(context.Background()) })
		p.clickhouseDSN = ch.DSN(clickhouse.Database)
	}
	p.upstream = upstream.New(upstream.Options{Scripted: true, Remember: true})
	sim := httptest.NewServer(p.upstream)
	p.stops = append(p.stops, func() error { sim.CloseClientConnections(); sim.Close(); return nil })
	p.stores = system.Stores{RedisURL: "redis://" + redis.Addr + "/0", PostgresURL: pg.DSN(postgres.Database),
		KafkaBrokers: kafka.Brokers(), ClickHouseURL: p.clickhouseDSN, SpoolDir: filepath.Join(dir, "spool"), UpstreamURL: sim.URL + "/v1/"}
	p.system, err = system.Start(ctx, p.stores, os.Stderr)
	if err != nil {
		return err
	}
	p.stops = append(p.stops, p.system.Stop)
	return nil
}

func (p *wholePath) stop() error {
	var errs []error
	for i := len(p.stops) - 1; i >= 0; i-- {
		errs = append(errs, p.stops[i]())
	}
	return errors.Join(errs...)
}
