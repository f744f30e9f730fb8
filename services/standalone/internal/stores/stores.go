package stores

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/tollgate-dev/tollgate/pkg/config"
	"github.com/tollgate-dev/tollgate/pkg/embedded/clickhouse"
	"github.com/tollgate-dev/tollgate/pkg/embedded/kafka"
	"github.com/tollgate-dev/tollgate/pkg/embedded/postgres"
	"github.com/tollgate-dev/tollgate/pkg/embedded/process"
	"github.com/tollgate-dev/tollgate/pkg/embedded/redis"
	"github.com/tollgate-dev/tollgate/services/standalone/internal/kept"
)

// Set says where the stores are. What is given before Start is used as it is.
type Set struct {
	RedisURL          string
	PostgresURL       string
	KafkaBrokers      []string
	ClickHouseURL     string // native DSN
	ClickHouseHTTPURL string
	FinanceUser       string
	FinancePassword   string
}

// Reporter tells a person what starts. Its Write takes the progress of downloads.
type Reporter interface {
	io.Writer
	Step(name string) (done func(what string))
}

// Stopper keeps how to stop what was started.
type Stopper interface {
	Defer(name string, stop func(context.Context) error)
}

// Start starts every store that s doesn't name, in the order in which the services need them, with data below dir.
func (s *Set) Start(ctx context.Context, dir string, k *kept.State, stack Stopper, r Reporter) error {
	for _, start := range []func(context.Context, string, *kept.State, Stopper, Reporter) error{s.redis, s.postgres, s.kafka, s.clickhouse} {
		if err := start(ctx, dir, k, stack, r); err != nil {
			return err
		}
	}
	return nil
}

const external = "not started here: %s is set, %s"

func (s *Set) redis(ctx context.Context, _ string, k *kept.State, stack Stopper, r Reporter) error {
	done := r.Step("Redis")
	if s.RedisURL != "" {
		done(fmt.Sprintf(external, "TOLLGATE_REDIS_URL", config.RedactURL(s.RedisURL)))
		return nil
	}
	srv, err := onKeptPorts(k, []string{"redis"}, func(p []int) (*redis.Server, error) {
		return redis.Start(ctx, redis.Options{Port: p[0]})
	})
	if err != nil {
		return err
	}
	stack.Defer("Redis", srv.Close)
	k.Ports["redis"] = portOf(srv.Addr)
	s.RedisURL = srv.URL()
	done("embedded, in memory, " + srv.Addr)
	return nil
}

func (s *Set) postgres(ctx context.Context, dir string, k *kept.State, stack Stopper, r Reporter) error {
	done := r.Step("PostgreSQL")
	if s.PostgresURL != "" {
		done(fmt.Sprintf(external, "TOLLGATE_POSTGRES_URL", config.RedactURL(s.PostgresURL)))
		return nil
	}
	srv, err := onKeptPorts(k, []string{"postgres"}, func(p []int) (*postgres.Server, error) {
		return postgres.Start(ctx, postgres.Options{Dir: filepath.Join(dir, "postgres"), Port: p[0], Log: r})
	})
	if err != nil {
		return err
	}
	stack.Defer("PostgreSQL", srv.Close)
	k.Ports["postgres"] = portOf(srv.Addr)
	s.PostgresURL = srv.DSN(postgres.Database)
	done("embedded, " + srv.Addr)
	return nil
}

func (s *Set) kafka(ctx context.Context, dir string, k *kept.State, stack Stopper, r Reporter) error {
	done := r.Step("Kafka")
	if len(s.KafkaBrokers) > 0 {
		done(fmt.Sprintf(external, "TOLLGATE_KAFKA_BROKERS", strings.Join(s.KafkaBrokers, ",")))
		return nil
	}
	log, err := os.OpenFile(filepath.Join(dir, "logs", "kafka.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600) //nolint:gosec // the user's own directory
	if err != nil {
		return fmt.Errorf("open Kafka's log: %w", err)
	}
	srv, err := onKeptPorts(k, []string{"kafka"}, func(p []int) (*kafka.Server, error) {
		return kafka.Start(ctx, kafka.Options{Dir: filepath.Join(dir, "kafka"), Port: p[0], Log: log})
	})
	if err != nil {
		return errors.Join(err, log.Close())
	}
	stack.Defer("Kafka", func(ctx context.Context) error { return errors.Join(srv.Close(ctx), log.Close()) })
	k.Ports["kafka"] = portOf(srv.Addr)
	s.KafkaBrokers = srv.Brokers()
	done("embedded, " + srv.Addr)
	return nil
}

func (s *Set) clickhouse(ctx context.Context, dir string, k *kept.State, stack Stopper, r Reporter) error {
	done := r.Step("ClickHouse")
	if s.ClickHouseURL != "" {
		done(fmt.Sprintf(external, "TOLLGATE_CLICKHOUSE_URL", config.RedactURL(s.ClickHouseURL)))
		return nil
	}
	srv, err := onKeptPorts(k, []string{"clickhouse", "clickhouse_http"}, func(p []int) (*clickhouse.Server, error) {
		return clickhouse.Start(ctx, clickhouse.Options{Dir: filepath.Join(dir, "clickhouse"), TCPPort: p[0], HTTPPort: p[1],
			AppPassword: k.ClickHousePassword, FinancePassword: k.FinancePassword, Log: r})
	})
	if err != nil {
		return err
	}
	stack.Defer("ClickHouse", srv.Close)
	k.Ports["clickhouse"], k.Ports["clickhouse_http"] = portOf(srv.TCPAddr), portOf(srv.HTTPAddr)
	s.ClickHouseURL, s.ClickHouseHTTPURL = srv.DSN(clickhouse.Database), srv.HTTPURL()
	s.FinanceUser, s.FinancePassword = clickhouse.FinanceUser, srv.FinancePassword
	done("embedded, " + srv.TCPAddr + ", HTTP " + srv.HTTPAddr)
	return nil
}

// onKeptPorts starts a server on the ports it had last time, or on any if one of them is taken now.
func onKeptPorts[S any](k *kept.State, names []string, start func(ports []int) (S, error)) (S, error) {
	ports := make([]int, len(names))
	for i, n := range names {
		ports[i] = k.Ports[n]
	}
	srv, err := start(ports)
	if errors.Is(err, process.ErrPortInUse) {
		return start(make([]int, len(names)))
	}
	return srv, err
}

func portOf(addr string) int {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return 0
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return 0
	}
	return n
}
