package quotalog

import (
	"fmt"
	"slices"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/price"
	"github.com/tollgate-dev/tollgate/pkg/usage"
)

// PriceEvent is one row of price_events: from ValidFrom on the model costs After. Before is nil where no price began at that instant.
type PriceEvent struct {
	Model     string
	Version   int64 // counts the changes of all of the model's prices
	ValidFrom time.Time
	Actor     string
	Reason    string
	Before    *price.Amounts
	After     price.Amounts
	At        time.Time
}

// Priced is one row of prices: who stated it last, and in which version of the model's prices.
type Priced struct {
	ValidFrom usage.Time `json:"valid_from"`
	price.Amounts
	Version   int64      `json:"version"`
	Actor     string     `json:"actor"`
	Reason    string     `json:"reason"`
	UpdatedAt usage.Time `json:"updated_at"`
}

// FoldPrices derives a model's prices from their events, oldest first; the earliest price comes first. It refuses what Fold refuses.
func FoldPrices(events []PriceEvent) ([]Priced, error) {
	var book []Priced
	var last time.Time
	for i, e := range events {
		at := slices.IndexFunc(book, func(p Priced) bool { return time.Time(p.ValidFrom).Equal(e.ValidFrom) })
		switch {
		case e.Model != events[0].Model:
			return nil, fmt.Errorf("event %d is of the model %s, not of %s", i, e.Model, events[0].Model)
		case e.Version != int64(i)+1:
			return nil, fmt.Errorf("%s: event %d has version %d", price.BookName(e.Model), i+1, e.Version)
		case (at < 0) != (e.Before == nil), at >= 0 && *e.Before != book[at].Amounts:
			return nil, fmt.Errorf("%s: version %d does not follow from the ones before", price.BookName(e.Model), e.Version)
		case e.At.Before(last):
			return nil, fmt.Errorf("%s: version %d is older than the one before", price.BookName(e.Model), e.Version)
		}
		last = e.At
		next := Priced{ValidFrom: usage.At(e.ValidFrom), Amounts: e.After, Version: e.Version, Actor: e.Actor, Reason: e.Reason, UpdatedAt: usage.At(e.At)}
		if at < 0 {
			book = append(book, next)
			continue
		}
		book[at] = next
	}
	slices.SortFunc(book, func(a, b Priced) int { return time.Time(a.ValidFrom).Compare(time.Time(b.ValidFrom)) })
	return book, nil
}
