// Package app wires the consumer: the step from EVENT (Kafka, usage.records.v1) to LEDGER (ClickHouse, usage_ledger).
//
// Start: HTTP (not ready), ClickHouse and its migrations, dead letters, the event log, the loop, ready. Each store is waited for, as long as
// it takes; /healthz answers meanwhile. Stop is the reverse: not ready, stop fetching, store the batch, commit, leave the group,
// close the dead letters and ClickHouse, and last HTTP, so that metrics can be read until the end.
//
// Beside the loop run the copy of prices and of orgs' time zones from quota.changes.v1 (package pricebook), and the comparison of views and offsets
// (package reconciliation). Neither holds the ledger up.
//
// What repeats at each crash point, and what removes it: package consume.
package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tollgate-dev/tollgate/migrations"
	"github.com/tollgate-dev/tollgate/pkg/clickhouseledger"
	"github.com/tollgate-dev/tollgate/pkg/lifecycle"
	"github.com/tollgate-dev/tollgate/pkg/observe"
	"github.com/tollgate-dev/tollgate/pkg/usage"
	"github.com/tollgate-dev/tollgate/services/consumer/internal/consume"
	"github.com/tollgate-dev/tollgate/services/consumer/internal/kafkadeadletters"
	"github.com/tollgate-dev/tollgate/services/consumer/internal/kafkasource"
)

const (
	retryMin, retryMax = 250 * time.Millisecond, 5 * time.Second // while ClickHouse is away at the start
	lagEvery           = 2 * time.Second
)

// Run consumes until ctx ends, and returns nil if all that was fetched is stored and committed. Other errors: the address can't be
// listened on, or a part failed for good.
func Run(ctx context.Context, cfg Config) error {
	var logTo io.Writer = os.Stderr
	if cfg.LogTo != nil {
		logTo = cfg.LogTo
	}
	log := observe.NewLogger(logTo, cfg.LogLevel, "consumer", cfg.Instance)
	stack := lifecycle.New(log)
	reg := observe.NewRegistry()

	store, err := clickhouseledger.Open(cfg.ClickHouseURL.Reveal())
	if err != nil {
		return err
	}
	var source *kafkasource.Source // the probe below asks for it only once ready, and it is set by then
	health := observe.NewHealth(
		observe.Check{Name: "clickhouse", Ask: store.Ping},
		observe.Check{Name: "kafka", Ask: func(ctx context.Context) error { return source.Ping(ctx) }})
	if err := serve(ctx, stack, cfg.Addr, health, reg); err != nil {
		return errors.Join(err, store.Close())
	}
	stack.Defer("clickhouse", func(context.Context) error { return store.Close() })
	if err := migrate(ctx, cfg, log); err != nil {
		return endStart(ctx, stack, err)
	}

	letters := kafkadeadletters.Open(cfg.KafkaBrokers, cmp.Or(cfg.DeadLetterTopic, usage.DeadLetterTopic), cfg.Instance)
	stack.Defer("dead letters", func(context.Context) error { return letters.Close() })

	source, err = kafkasource.Open(ctx, kafkasource.Config{Brokers: cfg.KafkaBrokers, Topic: cmp.Or(cfg.Topic, usage.Topic),
		Group: cfg.Group, ClientID: cfg.Instance, Queue: min(cfg.BatchRecords, 2000)}, log)
	if err != nil {
		return endStart(ctx, stack, err)
	}
	stack.Defer("event log", func(context.Context) error { return source.Close() })
	stack.Go("lag", func(ctx context.Context) error { return watchLag(ctx, source, reg, log) })
	if err := watchAgreement(stack, cfg, source, reg, log); err != nil {
		return endStart(ctx, stack, err)
	}

	loop := &consume.Loop{Source: source, Ledger: ledger{store}, DeadLetters: letters, Log: log, Now: time.Now, Metrics: consume.NewMetrics(reg, time.Now),
		Limits: consume.Limits{Count: cfg.BatchRecords, Bytes: cfg.BatchBytes, Wait: cfg.BatchInterval}}
	stack.Go("loop", loop.Run)

	stack.Go("prices", func(ctx context.Context) error { return copyPrices(ctx, cfg, reg, log) })

	health.SetReady(true)
	stack.Defer("readiness", func(context.Context) error { health.SetReady(false); return nil })
	log.Info("ready", "addr", cfg.Addr)
	return stack.Wait(ctx)
}

// endStart ends a start that failed, or that was asked to stop while it waited: the latter is no failure.
func endStart(ctx context.Context, stack *lifecycle.Stack, err error) error {
	if ctx.Err() != nil {
		return stack.Stop()
	}
	return stack.Abort(err)
}

// serve starts the three endpoints.
func serve(ctx context.Context, stack *lifecycle.Stack, addr string, health *observe.Health, reg *prometheus.Registry) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	mux := http.NewServeMux()
	health.Mount(mux, reg)
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	stack.Defer("http", func(ctx context.Context) error {
		err := srv.Shutdown(ctx)
		if e := <-served; !errors.Is(e, http.ErrServerClosed) {
			err = errors.Join(err, e)
		}
		return err
	})
	return nil
}

// migrate brings the ledger's schema up to date, however long ClickHouse stays away.
func migrate(ctx context.Context, cfg Config, log *slog.Logger) error {
	db, err := clickhouseledger.OpenSQL(cfg.ClickHouseURL.Reveal())
	if err != nil {
		return err
	}
	for wait := retryMin; ; wait = min(2*wait, retryMax) {
		err = migrations.ClickHouse(ctx, db)
		if err == nil || ctx.Err() != nil {
			return errors.Join(cmp.Or(ctx.Err(), err), db.Close())
		}
		log.Warn("waiting for ClickHouse", "err", err, "wait", wait.String())
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}
