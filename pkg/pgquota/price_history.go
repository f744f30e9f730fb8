package pgquota

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tollgate-dev/tollgate/pkg/price"
	"github.com/tollgate-dev/tollgate/pkg/quotalog"
	"github.com/tollgate-dev/tollgate/pkg/usage"
)

// PriceEvent is one row of price_events.
type PriceEvent = quotalog.PriceEvent

// PriceEvents reads the history of a model's prices, oldest first, from the version after the given one.
func (s *Store) PriceEvents(ctx context.Context, model string, after int64, limit int) ([]PriceEvent, error) {
	var es []PriceEvent
	err := s.read(ctx, func() (err error) {
		es, err = selectPriceEvents(ctx, s.pool, model, after, &limit)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read events of prices of %s: %w", model, err)
	}
	return es, nil
}

// selectPriceEvents reads at most limit events; nil: all.
func selectPriceEvents(ctx context.Context, q manyQuerier, model string, after int64, limit *int) ([]PriceEvent, error) {
	rows, err := q.Query(ctx, sqlListPriceEvents, model, after, limit)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanPriceEvent)
}

func scanPriceEvent(r pgx.CollectableRow) (PriceEvent, error) {
	var e PriceEvent
	var before, after []byte
	if err := r.Scan(&e.Model, &e.Version, &e.ValidFrom, &e.Actor, &e.Reason, &before, &after, &e.At); err != nil {
		return PriceEvent{}, err
	}
	e.ValidFrom, e.At = e.ValidFrom.UTC(), e.At.UTC()
	if before != nil {
		e.Before = &price.Amounts{}
		if err := json.Unmarshal(before, e.Before); err != nil {
			return PriceEvent{}, fmt.Errorf("price of %s version %d: before: %w", e.Model, e.Version, err)
		}
	}
	if err := json.Unmarshal(after, &e.After); err != nil {
		return PriceEvent{}, fmt.Errorf("price of %s version %d: after: %w", e.Model, e.Version, err)
	}
	return e, nil
}

// prices compares every model's prices with what their events say. A field is one price, by when it begins.
func (r *rebuild) prices(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, sqlRebuildModels)
	if err != nil {
		return err
	}
	models, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, model := range models {
		events, err := selectPriceEvents(ctx, tx, model, 0, nil)
		if err != nil {
			return err
		}
		r.report.Events += int64(len(events))
		want, err := quotalog.FoldPrices(events)
		if err != nil {
			r.untold(price.BookName(model), err)
			continue
		}
		derived, err := bookFields(want)
		if err != nil {
			return err
		}
		book, err := selectBook(ctx, tx, model)
		if err != nil {
			return err
		}
		have := make([]quotalog.Priced, len(book.Entries))
		for i, e := range book.Entries {
			have[i] = quotalog.Priced{ValidFrom: usage.At(e.ValidFrom), Amounts: price.AmountsOf(e.Price), Version: e.Version, Actor: e.Actor, Reason: e.Reason,
				UpdatedAt: usage.At(e.UpdatedAt)}
		}
		stored, err := bookFields(have)
		if err != nil {
			return err
		}
		r.compare(price.BookName(model), stored, derived)
	}
	r.looked(len(models))
	return nil
}

func bookFields(book []quotalog.Priced) (fields, error) {
	if len(book) == 0 {
		return nil, nil
	}
	all := fields{}
	for _, p := range book {
		b, err := json.Marshal(p)
		if err != nil {
			return nil, err
		}
		all[p.ValidFrom.String()] = b
	}
	return all, nil
}

func repairPrices(ctx context.Context, tx pgx.Tx, model string) (why string, err error) {
	events, err := selectPriceEvents(ctx, tx, model, 0, nil)
	if err != nil {
		return "", err
	}
	book, err := quotalog.FoldPrices(events)
	if err != nil {
		return "its history can't be folded: " + err.Error(), nil //nolint:nilerr // told as the difference's
	}
	b := &pgx.Batch{}
	b.Queue(sqlRebuildDropPrices, model)
	for _, p := range book {
		b.Queue(sqlUpsertPrice, model, time.Time(p.ValidFrom), p.Currency, p.Input, p.CachedInput, p.Output, p.Version, p.Actor, p.Reason, time.Time(p.UpdatedAt))
	}
	return "", tx.SendBatch(ctx, b).Close()
}
