package app

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tollgate-dev/tollgate/pkg/clickhouseledger"
	"github.com/tollgate-dev/tollgate/pkg/lifecycle"
	"github.com/tollgate-dev/tollgate/pkg/reconcile/clickhousetotals"
	"github.com/tollgate-dev/tollgate/services/consumer/internal/kafkasource"
	"github.com/tollgate-dev/tollgate/services/consumer/internal/reconciliation"
)

// watchAgreement compares offsets and views as long as the consumer runs, on one connection of its own.
func watchAgreement(stack *lifecycle.Stack, cfg Config, source *kafkasource.Source, reg prometheus.Registerer, log *slog.Logger) error {
	db, err := clickhouseledger.OpenSQL(cfg.ClickHouseURL.Reveal())
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(1)
	stack.Defer("reconcile connection", func(context.Context) error { return db.Close() })
	w := &reconciliation.Watch{Ledger: clickhousetotals.Ledger{DB: db}, Offsets: source.Differences, Every: cfg.Reconcile, Log: log, Now: time.Now}
	w.Register(reg)
	stack.Go("reconcile", w.Run)
	return nil
}
