package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"

	"github.com/tollgate-dev/tollgate/migrations"
	"github.com/tollgate-dev/tollgate/pkg/lifecycle"
	"github.com/tollgate-dev/tollgate/pkg/observe"
	"github.com/tollgate-dev/tollgate/pkg/pgquota"
	"github.com/tollgate-dev/tollgate/pkg/redisurl"
	"github.com/tollgate-dev/tollgate/services/quota/internal/api"
	"github.com/tollgate-dev/tollgate/services/quota/internal/attempts"
	"github.com/tollgate-dev/tollgate/services/quota/internal/kafkarelay"
	"github.com/tollgate-dev/tollgate/services/quota/internal/outboxwatch"
	"github.com/tollgate-dev/tollgate/services/quota/internal/redisrelay"
	"github.com/tollgate-dev/tollgate/services/quota/internal/refusallog"
)

// Run serves until ctx ends or a part fails, then stops what it started, last first: intake, relays, connections.
func Run(ctx context.Context, cfg Config) error {
	log := cfg.Log
	if log == nil {
		log = observe.NewLogger(os.Stdout, cfg.LogLevel, "quota", cfg.Instance)
	}
	reg := observe.NewRegistry()
	stack := lifecycle.New(log)

	tracer, err := observe.NewTracer(ctx, cfg.OTLPEndpoint, "quota", cfg.Instance)
	if err != nil {
		return stack.Abort(err)
	}
	stack.Defer("traces", tracer.Close)

	store, err := pgquota.Open(ctx, cfg.PostgresURL, pgquota.Options{Application: "tollgate-quota", MaxConns: 16})
	if err != nil {
		return stack.Abort(err)
	}
	stack.Defer("postgres", func(context.Context) error { store.Close(); return nil })
	if err := migrate(ctx, store); err != nil {
		return stack.Abort(err)
	}

	ro, err := redisurl.Options(cfg.RedisURL)
	if err != nil {
		return stack.Abort(fmt.Errorf("TOLLGATE_REDIS_URL: %w", err))
	}
	ro.MaxRetries = 1
	client := redis.NewUniversalClient(ro)
	stack.Defer("redis", func(context.Context) error { return client.Close() })

	kafka := kafkarelay.Connect(cfg.KafkaBrokers)
	stack.Defer("kafka", func(context.Context) error { return kafka.Close() })

	watch := outboxwatch.New(store, log, reg)
	stack.Go("outbox watch", watch.Run)
	toKafka := kafkarelay.New(store, kafka, log, reg)
	stack.Go("kafka relay", toKafka.Run)
	toRedis := redisrelay.New(store, client, log, reg)
	stack.Go("redis relay", toRedis.Run)
	refusals := refusallog.New(store, cfg.Instance, log)
	stack.Go("refusal log", refusals.Run)
	proxies, err := attempts.ParseProxies(cfg.TrustedProxies)
	if err != nil {
		return stack.Abort(fmt.Errorf("TOLLGATE_TRUSTED_PROXIES: %w", err))
	}

	listener := cfg.Listener
	if listener == nil {
		if listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.Addr); err != nil {
			return stack.Abort(err)
		}
	}
	health := observe.NewHealth(observe.Check{Name: "postgres", Ask: store.Ping})
	handler := api.New(api.Config{Store: store, Publisher: toRedis, Committed: toKafka.Wake, Tokens: cfg.tokens(), Proxies: proxies,
		Attempts: attempts.New(cfg.AttemptBurst, cfg.AttemptEvery, time.Now), Refusals: refusals, Health: health, Registry: reg, Log: log})
	stack.Go("http", func(ctx context.Context) error { return serve(ctx, listener, tracer.Wrap(handler)) })

	health.SetReady(true)
	stack.Defer("readiness", func(context.Context) error { health.SetReady(false); return nil })
	log.Info("serving", "addr", listener.Addr().String())
	return stack.Wait(ctx)
}

func migrate(ctx context.Context, store *pgquota.Store) error {
	db := stdlib.OpenDBFromPool(store.Pool())
	return errors.Join(migrations.Postgres(ctx, db), db.Close())
}

// serve answers until ctx ends, then finishes what has begun.
func serve(ctx context.Context, l net.Listener, h http.Handler) error {
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 15 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 32 << 10}
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(l) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	finish, cancel := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
	defer cancel()
	err := srv.Shutdown(finish)
	if err != nil {
		err = errors.Join(err, srv.Close())
	}
	if e := <-failed; !errors.Is(e, http.ErrServerClosed) {
		err = errors.Join(err, e)
	}
	return err
}
