package app

import (
	"context"
	"errors"

	"github.com/tollgate-dev/tollgate/pkg/clickhouseledger"
	"github.com/tollgate-dev/tollgate/services/consumer/internal/consume"
)

// ledger is the loop's view of pkg/clickhouseledger.
type ledger struct{ *clickhouseledger.Ledger }

var _ consume.Ledger = ledger{}

// Store implements consume.Ledger.
func (l ledger) Store(ctx context.Context, rows []consume.Row) error {
	events := make([]clickhouseledger.Event, len(rows))
	for i, row := range rows {
		at := row.Message.Position
		events[i] = clickhouseledger.Event{Record: row.Record, Topic: at.Topic, Partition: at.Partition, Offset: at.Offset}
	}
	_, err := l.Ledger.Store(ctx, events)
	if errors.Is(err, clickhouseledger.ErrRefused) {
		return errors.Join(consume.ErrRefused, err)
	}
	return err
}
