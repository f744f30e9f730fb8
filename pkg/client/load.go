package client

import (
	"context"
	"net/http"
	"time"
)

// Load is what counts of a reported load.
type Load struct {
	ModelGroup string    `json:"model_group"` // "" for all models
	Load       float64   `json:"load"`
	Level      float64   `json:"level"` // what requests are shed by
	ExpiresAt  time.Time `json:"expires_at"`
}

// PutLoad reports how loaded the servers of a group of models are ("" for all models), from 0 to 1. It counts for ttl, 1 s to 1 h, on every
// instance within a second, and replaces the group's last report: call it every few seconds, with a ttl of several times that. Once: the next
// report is the better repeat.
func (e *Enforcement) PutLoad(ctx context.Context, group string, load float64, ttl time.Duration) (Load, error) {
	body := struct {
		ModelGroup string  `json:"model_group,omitempty"`
		Load       float64 `json:"load"`
		TTLMillis  int64   `json:"ttl_ms"`
	}{group, load, ttl.Milliseconds()}
	var l Load
	err := e.call(ctx, http.MethodPut, "/internal/load", nil, body, &l)
	return l, err
}

// Loads tells by which reports the answering instance sheds: those that have not expired.
func (e *Enforcement) Loads(ctx context.Context) ([]Load, error) {
	var a struct {
		Loads []Load `json:"loads"`
	}
	err := e.call(ctx, http.MethodGet, "/internal/load", nil, nil, &a)
	return a.Loads, err
}
