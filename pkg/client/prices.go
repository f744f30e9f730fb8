package client

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/problem"
)

// PriceChange states what a million tokens of a model cost from ValidFrom on: decimals in strings, such as "0.15". CachedInput "" is Input,
// Currency "" is USD, a zero ValidFrom is now.
type PriceChange struct {
	Input       string    `json:"input_per_million"`
	CachedInput string    `json:"cached_input_per_million,omitempty"`
	Output      string    `json:"output_per_million"`
	Currency    string    `json:"currency,omitempty"`
	ValidFrom   time.Time `json:"valid_from,omitzero"`
	Reason      string    `json:"reason,omitempty"`
}

// PutPrice adds a price to the book, or changes the one that begins at the same instant. It acts on all usage from then on, past usage too.
func (q *Quotas) PutPrice(ctx context.Context, model string, c PriceChange) error {
	return q.call(ctx, http.MethodPut, "/internal/prices/"+url.PathEscape(model), nil, c, nil)
}

// HasPrice tells whether a model has ever had a price, one of the future included.
func (q *Quotas) HasPrice(ctx context.Context, model string) (bool, error) {
	err := q.call(ctx, http.MethodGet, "/internal/prices/"+url.PathEscape(model), nil, nil, nil)
	var p *problem.Problem
	if errors.As(err, &p) && p.Status == http.StatusNotFound {
		return false, nil
	}
	return err == nil, err
}
