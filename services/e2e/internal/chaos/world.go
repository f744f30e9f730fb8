package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/client"
	"github.com/tollgate-dev/tollgate/pkg/embedded/clickhouse"
	"github.com/tollgate-dev/tollgate/pkg/embedded/postgres"
	"github.com/tollgate-dev/tollgate/pkg/lifecycle"
	"github.com/tollgate-dev/tollgate/pkg/testkit/realkafka"
	"github.com/tollgate-dev/tollgate/pkg/testkit/realredis"
	"github.com/tollgate-dev/tollgate/pkg/usage"
	"github.com/tollgate-dev/tollgate/services/e2e/internal/system"
)

// world is the stores and the services.
type world struct {
	out        io.Writer
	host       *system.Host
	kafka      *realkafka.Server
	redis      *realredis.Server
	clickhouse *clickhouse.Server
	chOptions  clickhouse.Options // of the next start
	members    map[string]*member
	stops      []func() error
}

func (w *world) tell(format string, args ...any) { fmt.Fprintf(w.out, format+"\n", args...) }

// startWorld starts all of it. log gets what the processes print.
func startWorld(ctx context.Context, out, log io.Writer) (_ *world, err error) {
	w := &world{out: out, members: map[string]*member{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.stop())
		}
	}()
	dir, err := os.MkdirTemp("", "tollgate-chaos-")
	if err != nil {
		return nil, err
	}
	w.stops = append(w.stops, func() error { return os.RemoveAll(dir) })
	w.host = system.NewHost(dir)
	w.stops = append(w.stops, func() error { w.host.Close(); return nil })
	if err := w.host.Run(func(t testing.TB) {
		w.redis, w.kafka = realredis.Start(t, realredis.WithAOF()), realkafka.Start(t)
		w.kafka.CreateTopic(t, usage.Topic, usage.Partitions, nil)
		w.kafka.CreateTopic(t, usage.DeadLetterTopic, 1, nil)
		w.kafka.CreateTopic(t, usage.QuotaTopic, usage.Partitions, map[string]string{"cleanup.policy": "compact"})
	}); err != nil {
		return nil, err
	}
	pg, err := postgres.Start(ctx, postgres.Options{Dir: filepath.Join(dir, "postgres"), Unsafe: true, Log: log})
	if err != nil {
		return nil, err
	}
	w.stops = append(w.stops, func() error { return pg.Close(context.WithoutCancel(ctx)) })
	w.chOptions = clickhouse.Options{Dir: filepath.Join(dir, "clickhouse"), MaxMemory: 2 << 30, Log: log}
	if w.clickhouse, err = clickhouse.Start(ctx, w.chOptions); err != nil {
		return nil, err
	}
	w.stops = append(w.stops, func() error { return w.clickhouse.Close(context.WithoutCancel(ctx)) })
	w.chOptions.AppPassword, w.chOptions.FinancePassword = w.clickhouse.AppPassword, w.clickhouse.FinancePassword
	for addr, port := range map[string]*int{w.clickhouse.TCPAddr: &w.chOptions.TCPPort, w.clickhouse.HTTPAddr: &w.chOptions.HTTPPort} {
		_, number, _ := strings.Cut(addr, ":")
		if _, err := fmt.Sscan(number, port); err != nil {
			return nil, fmt.Errorf("port of %s: %w", addr, err)
		}
	}
	if err := w.startServices(ctx, pg.DSN(postgres.Database), dir, log); err != nil {
		return nil, err
	}
	return w, nil
}

func (w *world) startServices(ctx context.Context, postgresURL, dir string, log io.Writer) error {
	for _, s := range []struct{ name, service, addrVar string }{
		{"quota", system.Quota, "TOLLGATE_QUOTA_ADDR"},
		{"consumer-a", system.Consumer, "TOLLGATE_CONSUMER_ADDR"}, {"consumer-b", system.Consumer, "TOLLGATE_CONSUMER_ADDR"},
		{"enforcement-a", system.Enforcement, "TOLLGATE_ENFORCEMENT_ADDR"}, {"enforcement-b", system.Enforcement, "TOLLGATE_ENFORCEMENT_ADDR"},
	} {
		environ := system.Stores{RedisURL: "redis://" + w.redis.Addr + "/0", PostgresURL: postgresURL, KafkaBrokers: w.kafka.Brokers(),
			ClickHouseURL: w.clickhouse.DSN(clickhouse.Database), SpoolDir: filepath.Join(dir, "spool-"+s.name)}.Environ()
		m, err := startMember(s.name, s.service, s.addrVar, environ, log)
		if err != nil {
			return err
		}
		w.members[s.name] = m
		w.stops = append(w.stops, m.stop)
		if err := m.awaitReady(ctx); err != nil {
			return err
		}
	}
	q := client.NewQuotas(w.members["quota"].url, system.AdminToken)
	defer q.Close()
	for n := range users {
		c := client.Unlimited()
		if n%2 == 0 {
			c.OrgID = new(fmt.Sprintf("chaos-org-%d", n%orgs))
		}
		if _, err := q.PutQuota(ctx, fmt.Sprintf("chaos-%d", n), c); err != nil {
			return err
		}
	}
	return nil
}

// restartClickHouse kills the server and starts it again on its ports and its data.
func (w *world) restartClickHouse(ctx context.Context, away time.Duration) error {
	if err := syscall.Kill(-w.clickhouse.Pid(), syscall.SIGKILL); err != nil {
		return err
	}
	<-w.clickhouse.Done()
	lifecycle.Sleep(ctx, away)
	s, err := clickhouse.Start(ctx, w.chOptions)
	if err != nil {
		return err
	}
	_ = w.clickhouse.Close(ctx) // gives its terminal back
	w.clickhouse = s
	return nil
}

func (w *world) restartKafka(ctx context.Context, away time.Duration) error {
	w.kafka.Kill()
	lifecycle.Sleep(ctx, away)
	return w.host.Run(func(t testing.TB) { w.kafka.Restart(t) })
}

// stop ends what was started, last first, and tells every failure.
func (w *world) stop() error {
	var errs []error
	for i := len(w.stops) - 1; i >= 0; i-- {
		errs = append(errs, w.stops[i]())
	}
	w.stops = nil
	return errors.Join(errs...)
}
