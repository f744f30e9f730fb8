package bench

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/tollgate-dev/tollgate/pkg/embedded/postgres"
	"github.com/tollgate-dev/tollgate/pkg/testkit/realkafka"
	"github.com/tollgate-dev/tollgate/pkg/testkit/realredis"
	"github.com/tollgate-dev/tollgate/pkg/usage"
	"github.com/tollgate-dev/tollgate/services/e2e/internal/system"
)

// rig is the stores and services that are measured.
type rig struct {
	redisAddr string
	system    *system.System
	close     []func() error // in the order of their start
}

// startRig starts a real Redis, a real Kafka, a PostgreSQL and, on them, quota and enforcement. There is no consumer: it would share
// this machine's cores, which it does not in production.
func startRig(ctx context.Context, log io.Writer) (_ *rig, err error) {
	r := &rig{}
	defer func() {
		if err != nil {
			_ = r.stop() // the start's error says more
		}
	}()
	dir, err := os.MkdirTemp("", "tollgate-bench-")
	if err != nil {
		return nil, err
	}
	r.close = append(r.close, func() error { return os.RemoveAll(dir) })
	host := system.NewHost(dir)
	r.close = append(r.close, func() error { host.Close(); return nil })
	var kafka *realkafka.Server
	if err := host.Run(func(t testing.TB) {
		r.redisAddr = realredis.Start(t).Addr
		kafka = realkafka.Start(t)
		kafka.CreateTopic(t, usage.Topic, usage.Partitions, nil)
		kafka.CreateTopic(t, usage.QuotaTopic, usage.Partitions, map[string]string{"cleanup.policy": "compact"})
	}); err != nil {
		return nil, err
	}
	pg, err := postgres.Start(ctx, postgres.Options{Dir: filepath.Join(dir, "postgres"), Log: os.Stderr})
	if err != nil {
		return nil, err
	}
	r.close = append(r.close, func() error { return pg.Close(context.WithoutCancel(ctx)) })
	r.system, err = system.Start(ctx, system.Stores{RedisURL: "redis://" + r.redisAddr + "/0", PostgresURL: pg.DSN(postgres.Database), KafkaBrokers: kafka.Brokers()}, log)
	if err != nil {
		return nil, err
	}
	r.close = append(r.close, r.system.Stop)
	return r, nil
}

func (r *rig) stop() error {
	var first error
	for i := len(r.close) - 1; i >= 0; i-- {
		if err := r.close[i](); err != nil && first == nil {
			first = err
		}
	}
	return first
}
