package pgquota

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tollgate-dev/tollgate/pkg/price"
	"github.com/tollgate-dev/tollgate/pkg/usage"
)

// BookEntry is one price and who stated it last.
type BookEntry struct {
	price.Price
	Version   int64 // the book's when it was stated
	Actor     string
	Reason    string
	UpdatedAt time.Time
}

// Book is all prices of a model, the earliest first. Version 0: it has none.
type Book struct {
	Model   string
	Version int64 // counts the changes of all of them
	Entries []BookEntry
	begun   int // how many of them had begun when it was read
}

// InForce is the price that held when the book was read; nil if none had begun.
func (b Book) InForce() *BookEntry {
	if b.begun == 0 {
		return nil
	}
	return &b.Entries[b.begun-1]
}

func (b Book) at(validFrom time.Time) *BookEntry {
	for i := range b.Entries {
		if b.Entries[i].ValidFrom.Equal(validFrom) {
			return &b.Entries[i]
		}
	}
	return nil
}

func (b Book) lastChange() (last time.Time) {
	for _, e := range b.Entries {
		if e.UpdatedAt.After(last) {
			last = e.UpdatedAt
		}
	}
	return last
}

// PriceChange states what a model's tokens cost from an instant on. A zero ValidFrom is now; it then changes nothing if the price in force
// says the same already.
type PriceChange struct {
	Price  price.Price
	If     Precondition // of the book's version
	Actor  string
	Reason string
}

// PriceResult is what a PutPrice led to: the whole book as it is now.
type PriceResult struct {
	Book    Book
	Changed bool
}

// Validate returns one *tier.FieldError per invalid field, joined; nil if all are good.
func (c PriceChange) Validate() error {
	p := c.Price
	if p.ValidFrom.IsZero() {
		p.ValidFrom = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // the database's clock will give a good one
	}
	return errors.Join(p.Validate(), checkNote("reason", c.Reason, 0, MaxReason), checkNote("actor", c.Actor, 1, MaxActor))
}

// Prices reads a model's prices in one statement.
func (s *Store) Prices(ctx context.Context, model string) (Book, error) {
	b := Book{Model: model}
	books, err := s.books(ctx, model)
	if err != nil {
		return b, fmt.Errorf("read prices of %s: %w", model, err)
	}
	if len(books) > 0 {
		b = books[0]
	}
	return b, nil
}

// PriceBook reads the prices of all models, by model.
func (s *Store) PriceBook(ctx context.Context) ([]Book, error) {
	books, err := s.books(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("read prices: %w", err)
	}
	return books, nil
}

func (s *Store) books(ctx context.Context, model string) (books []Book, err error) {
	err = s.read(ctx, func() (err error) {
		books, err = selectBooks(ctx, s.pool, model)
		return err
	})
	return books, err
}

// listedPrice is one row of list_prices.sql.
type listedPrice struct {
	BookEntry
	begun bool
}

func selectBooks(ctx context.Context, q manyQuerier, model string) ([]Book, error) {
	rows, err := q.Query(ctx, sqlListPrices, model)
	if err != nil {
		return nil, err
	}
	list, err := pgx.CollectRows(rows, scanPrice)
	if err != nil {
		return nil, err
	}
	var books []Book
	for _, e := range list {
		if len(books) == 0 || books[len(books)-1].Model != e.Model {
			books = append(books, Book{Model: e.Model})
		}
		b := &books[len(books)-1]
		b.Version, b.Entries = max(b.Version, e.Version), append(b.Entries, e.BookEntry)
		if e.begun {
			b.begun = len(b.Entries)
		}
	}
	return books, nil
}

func scanPrice(r pgx.CollectableRow) (listedPrice, error) {
	var e listedPrice
	var a price.Amounts
	var model string
	var validFrom time.Time
	err := r.Scan(&model, &validFrom, &a.Currency, &a.Input, &a.CachedInput, &a.Output, &e.Version, &e.Actor, &e.Reason, &e.UpdatedAt, &e.begun)
	if err != nil {
		return listedPrice{}, err
	}
	e.UpdatedAt = e.UpdatedAt.UTC()
	if e.Price, err = a.Price(model, validFrom); err != nil {
		return listedPrice{}, fmt.Errorf("price of %s: %w", model, err)
	}
	return e, nil
}

// PutPrice makes a model's price from an instant on what c states, in one transaction: event, projection and outbox. What begins at another
// instant stays. A repeat changes nothing. Errors: *tier.FieldError (joined), *VersionMismatch; else it failed, and nothing was changed unless
// the failure was that of the commit.
func (s *Store) PutPrice(ctx context.Context, c PriceChange) (PriceResult, error) {
	if err := c.Validate(); err != nil {
		return PriceResult{}, err
	}
	var res PriceResult
	name := price.BookName(c.Price.Model)
	err := s.change(ctx, name, func(tx pgx.Tx) error {
		old, err := selectBook(ctx, tx, c.Price.Model)
		if err != nil {
			return err
		}
		if err := c.If.check(name, old.Version); err != nil {
			return err
		}
		res = PriceResult{Book: old}
		now, err := clock(ctx, tx, old.Version, old.lastChange())
		if err != nil {
			return err
		}
		next := c.Price
		if next.ValidFrom.IsZero() {
			if in := old.InForce(); in != nil && in.SameAmounts(next) {
				return nil
			}
			next.ValidFrom = now
		}
		was := old.at(next.ValidFrom)
		if was != nil && was.Equal(next) {
			return nil
		}
		if err := writePrice(ctx, tx, c, was, BookEntry{Price: next, Version: old.Version + 1, UpdatedAt: now}); err != nil {
			return err
		}
		res.Changed = true
		res.Book, err = selectBook(ctx, tx, c.Price.Model)
		return err
	})
	if err != nil {
		return PriceResult{}, fmt.Errorf("put price of %s: %w", c.Price.Model, err)
	}
	return res, nil
}

func selectBook(ctx context.Context, q manyQuerier, model string) (Book, error) {
	books, err := selectBooks(ctx, q, model)
	if err != nil || len(books) == 0 {
		return Book{Model: model}, err
	}
	return books[0], nil
}

func writePrice(ctx context.Context, tx pgx.Tx, c PriceChange, was *BookEntry, next BookEntry) error {
	after := price.AmountsOf(next.Price)
	ev := price.Changed{SchemaVersion: price.SchemaVersion, Model: next.Model, ValidFrom: usage.At(next.ValidFrom), Version: next.Version,
		ChangedAt: usage.At(next.UpdatedAt), Actor: c.Actor, Reason: c.Reason, After: &after}
	var before any
	if was != nil {
		a := price.AmountsOf(was.Price)
		ev.Before = &a
		b, err := json.Marshal(a)
		if err != nil {
			return err
		}
		before = string(b)
	}
	name := price.Name(next.Model, next.ValidFrom)
	ev.EventID = EventID(name, next.Version)
	_, payload, err := marshal(ev.EventID, ev)
	if err != nil {
		return err
	}
	now, err := json.Marshal(after)
	if err != nil {
		return err
	}
	b := &pgx.Batch{}
	b.Queue(sqlInsertPriceEvent, next.Model, next.Version, next.ValidFrom, c.Actor, c.Reason, before, string(now), next.UpdatedAt)
	b.Queue(sqlUpsertPrice, next.Model, next.ValidFrom, after.Currency, after.Input, after.CachedInput, after.Output, next.Version, c.Actor, c.Reason,
		next.UpdatedAt)
	b.Queue(sqlInsertOutboxKafka, KindPrice, name, next.Version, ev.EventID, string(payload), next.UpdatedAt)
	return tx.SendBatch(ctx, b).Close()
}
