// Package refusallog writes who tried what without the right into the audit log (access_refusals). CONTROL.
//
// Attempts of one kind (reason, actor, address, method and route) within Every are one row, and at most Kinds rows are written in that time: what
// goes beyond is counted in a row of the reason "several". So a flood neither fills the disk nor keeps Postgres busy.
//
// What a crash loses: the attempts of the last Every; they are in the process's log all the same. When Postgres fails, they wait, in the same
// bounded form, until it is back.
package refusallog

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/pgquota"
)

// Every is how often attempts are written, Kinds how many rows at most.
const (
	Every = 5 * time.Second
	Kinds = 50
)

const several = "several"

// Store keeps the log.
type Store interface {
	AppendRefusals(ctx context.Context, rs []pgquota.Refusal) error
}

var _ Store = (*pgquota.Store)(nil)

// Attempt is one refused call.
type Attempt struct {
	Reason, Actor, Address, Method, Route, Path, RequestID string
	At                                                     time.Time
}

type kind struct{ reason, actor, address, method, route string }

// Log collects attempts.
type Log struct {
	store    Store
	instance string
	log      *slog.Logger

	mu      sync.Mutex
	order   []kind
	waiting map[kind]*pgquota.Refusal
}

// New makes a log; instance stands in its rows.
func New(store Store, instance string, log *slog.Logger) *Log {
	return &Log{store: store, instance: instance, log: log, waiting: map[kind]*pgquota.Refusal{}}
}

// Add counts an attempt. It never waits.
func (l *Log) Add(a Attempt) {
	k := kind{a.Reason, a.Actor, a.Address, a.Method, a.Route}
	a.At = a.At.UTC().Truncate(time.Millisecond)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting[k] == nil && len(l.order) >= Kinds-1 {
		k, a = kind{reason: several}, Attempt{Reason: several, At: a.At}
	}
	r := l.waiting[k]
	if r == nil {
		r = &pgquota.Refusal{Instance: l.instance, Reason: a.Reason, Actor: a.Actor, Address: a.Address, Method: a.Method, Path: a.Path, RequestID: a.RequestID,
			FirstAt: a.At, LastAt: a.At}
		l.waiting[k], l.order = r, append(l.order, k)
	}
	r.Attempts++
	if a.At.After(r.LastAt) {
		r.LastAt = a.At
	}
}

// Flush writes what waits. After an error it still waits.
func (l *Log) Flush(ctx context.Context) error {
	l.mu.Lock()
	order, waiting := l.order, l.waiting
	l.order, l.waiting = nil, map[kind]*pgquota.Refusal{}
	l.mu.Unlock()
	if len(order) == 0 {
		return nil
	}
	rows := make([]pgquota.Refusal, len(order))
	for i, k := range order {
		rows[i] = *waiting[k]
	}
	err := l.store.AppendRefusals(ctx, rows)
	if err != nil {
		l.keep(order, waiting)
	}
	return err
}

// keep puts back what could not be written, before what came meanwhile.
func (l *Log) keep(order []kind, waiting map[kind]*pgquota.Refusal) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range l.order {
		late := l.waiting[k]
		if waiting[k] == nil && len(order) >= Kinds-1 {
			k, late.Reason, late.Actor, late.Address, late.Method, late.Path, late.RequestID = kind{reason: several}, several, "", "", "", "", ""
		}
		if early := waiting[k]; early != nil {
			early.Attempts, early.LastAt = early.Attempts+late.Attempts, late.LastAt
			continue
		}
		waiting[k], order = late, append(order, k)
	}
	l.order, l.waiting = order, waiting
}

// Run writes until ctx ends, and once more then.
func (l *Log) Run(ctx context.Context) error {
	tick := time.NewTicker(Every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			l.flush(context.WithoutCancel(ctx), 2*time.Second)
			return nil
		case <-tick.C:
			l.flush(ctx, Every)
		}
	}
}

func (l *Log) flush(ctx context.Context, within time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if err := l.Flush(ctx); err != nil {
		l.log.WarnContext(ctx, "refused attempts wait for the audit log", "err", err)
	}
}
