package app

import (
	"cmp"
	"context"
	"errors"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tollgate-dev/tollgate/pkg/clickhouseledger"
	"github.com/tollgate-dev/tollgate/pkg/usage"
	"github.com/tollgate-dev/tollgate/services/consumer/internal/clickhouseprices"
	"github.com/tollgate-dev/tollgate/services/consumer/internal/kafkasource"
	"github.com/tollgate-dev/tollgate/services/consumer/internal/pricebook"
)

// copyPrices keeps the ledger's prices and time zones up to date until ctx ends. It waits for the topic by itself: usage is stored meanwhile.
// It reads the whole topic at each start, so that a ClickHouse that was lost has all prices and zones again once a consumer has been started.
func copyPrices(ctx context.Context, cfg Config, reg prometheus.Registerer, log *slog.Logger) (err error) {
	o, err := clickhouseledger.Options(cfg.ClickHouseURL.Reveal())
	if err != nil {
		return err
	}
	store, err := clickhouseprices.Open(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	source, err := kafkasource.OpenWhole(ctx, kafkasource.Config{Brokers: cfg.KafkaBrokers, Topic: cmp.Or(cfg.QuotaTopic, usage.QuotaTopic), ClientID: cfg.Instance}, log)
	if err != nil {
		if ctx.Err() != nil {
			return nil // asked to stop while it waited
		}
		return err
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	return pricebook.New(source, store, log, reg).Run(ctx)
}
