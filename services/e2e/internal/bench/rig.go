package bench

import (
	"context"
	"fmt"
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
	t := &tb{dir: dir}
	r.close = append(r.close, func() error { t.cleanup(); return nil })
	var kafka *realkafka.Server
	if err := t.run(func(t testing.TB) {
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

// tb lets the testkit, made for tests, start servers for a command. Of testing.TB it has what the starters use.
type tb struct {
	testing.TB // nil: whatever is not below would panic
	dir        string
	cleanups   []func()
}

// failure is how tb's Fatal ends the starter.
type failure struct{ error }

// run calls start and turns its Fatal into an error.
func (t *tb) run(start func(testing.TB)) (err error) {
	defer func() {
		switch v := recover().(type) {
		case nil:
		case failure:
			err = v.error
		default:
			panic(v)
		}
	}()
	start(t)
	return nil
}

func (t *tb) cleanup() {
	for i := len(t.cleanups) - 1; i >= 0; i-- {
		t.cleanups[i]()
	}
}

func (t *tb) Helper()                           {}
func (t *tb) Name() string                      { return "bench" }
func (t *tb) Context() context.Context          { return context.Background() }
func (t *tb) Cleanup(f func())                  { t.cleanups = append(t.cleanups, f) }
func (t *tb) Log(args ...any)                   { fmt.Fprintln(os.Stderr, args...) }
func (t *tb) Logf(format string, args ...any)   { fmt.Fprintf(os.Stderr, format+"\n", args...) }
func (t *tb) Error(args ...any)                 { t.Log(args...) }
func (t *tb) Errorf(format string, args ...any) { t.Logf(format, args...) }
func (t *tb) Fatal(args ...any)                 { panic(failure{fmt.Errorf("%s", fmt.Sprint(args...))}) }
func (t *tb) Fatalf(format string, args ...any) { panic(failure{fmt.Errorf(format, args...)}) }
func (t *tb) TempDir() string {
	dir, err := os.MkdirTemp(t.dir, "store-")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
