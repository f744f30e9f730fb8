package client

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/price"
)

// Price is what a million tokens of a model cost from ValidFrom on, and who stated it last. Version is the book's of then.
type Price struct {
	ValidFrom time.Time `json:"valid_from"`
	price.Amounts
	Version   int64     `json:"version"`
	Actor     string    `json:"actor"`
	Reason    string    `json:"reason"`
	UpdatedAt time.Time `json:"updated_at"`
}

// PriceBook is all prices of a model, the earliest first. Version counts the changes of any of them; InForce is nil if none has begun.
type PriceBook struct {
	Model   string  `json:"model"`
	Version int64   `json:"version"`
	InForce *Price  `json:"in_force"`
	Prices  []Price `json:"prices"`
}

// PriceChange states one price of a model, in decimal strings such as "0.15" for a million tokens. CachedInput "" is Input, Currency "" is USD,
// ValidFrom nil is now.
type PriceChange struct {
	Input       string     `json:"input_per_million"`
	CachedInput string     `json:"cached_input_per_million,omitempty"`
	Output      string     `json:"output_per_million"`
	Currency    string     `json:"currency,omitempty"`
	ValidFrom   *time.Time `json:"valid_from,omitempty"`
	Reason      string     `json:"reason,omitempty"` // for the history
	IfVersion   *int64     `json:"-"`                // change only if this is still the book's version, else 412
}

// PriceEvent is one change of a model's prices. Before is nil where no price began at that instant.
type PriceEvent struct {
	Version   int64          `json:"version"`
	ValidFrom time.Time      `json:"valid_from"`
	At        time.Time      `json:"at"`
	Actor     string         `json:"actor"`
	Reason    string         `json:"reason"`
	Before    *price.Amounts `json:"before"`
	After     price.Amounts  `json:"after"`
}

// ListPrices reads the price book, by model.
func (q *Quotas) ListPrices(ctx context.Context) ([]PriceBook, error) {
	var out struct {
		Models []PriceBook `json:"models"`
	}
	err := q.call(ctx, http.MethodGet, "/internal/prices", nil, nil, &out)
	return out.Models, err
}

// GetPrices reads a model's prices. A model without any is a 404.
func (q *Quotas) GetPrices(ctx context.Context, model string) (PriceBook, error) {
	var out PriceBook
	err := q.call(ctx, http.MethodGet, "/internal/prices/"+url.PathEscape(model), nil, nil, &out)
	return out, err
}

// PutPrice states a price. One that begins at the same instant is replaced, all others stay.
func (q *Quotas) PutPrice(ctx context.Context, model string, c PriceChange) (PriceBook, error) {
	var out PriceBook
	err := q.call(ctx, http.MethodPut, "/internal/prices/"+url.PathEscape(model), ifMatch(c.IfVersion), c, &out)
	return out, err
}

// PriceEvents reads who changed a model's prices, oldest first.
func (q *Quotas) PriceEvents(ctx context.Context, model string, p Page) ([]PriceEvent, string, error) {
	var out struct {
		Events []PriceEvent `json:"events"`
		Next   string       `json:"next_cursor"`
	}
	err := q.call(ctx, http.MethodGet, "/internal/prices/"+url.PathEscape(model)+"/events"+p.query(nil), nil, nil, &out)
	return out.Events, out.Next, err
}
