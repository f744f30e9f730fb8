package pricebook

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tollgate-dev/tollgate/pkg/lifecycle"
	"github.com/tollgate-dev/tollgate/services/consumer/internal/consume"
)

// Store keeps the highest version of each price and of each org's zone. Storing again what is stored, or something older, changes nothing.
type Store interface {
	Store(ctx context.Context, prices []Price, zones []Zone) error
	// KnowsZone tells whether the views could use a zone.
	KnowsZone(ctx context.Context, name string) (bool, error)
}

// Source gives every message of quota.changes.v1 from its beginning, and then what comes.
type Source interface {
	// Fetch waits for the next message. It ends with ctx.
	Fetch(ctx context.Context) (consume.Message, error)
}

const (
	mostMessages       = 1000 // in a batch
	gather             = 100 * time.Millisecond
	attempt            = 30 * time.Second
	retryMin, retryMax = 100 * time.Millisecond, 5 * time.Second
)

// Results of a message, values of a metric's label.
const (
	stored   = "stored"
	ignored  = "ignored"
	unusable = "unusable"
)

// Copier copies until it is stopped.
type Copier struct {
	source   Source
	store    Store
	log      *slog.Logger
	messages *prometheus.CounterVec
	failures prometheus.Counter
}

// New makes a copier. Metrics: tollgate_consumer_price_book_messages_total by result, tollgate_consumer_price_book_failures_total.
func New(source Source, store Store, log *slog.Logger, reg prometheus.Registerer) *Copier {
	c := &Copier{source: source, store: store, log: log,
		messages: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tollgate_consumer_price_book_messages_total",
			Help: "Messages of quota.changes.v1, by result: stored (a price or an org's zone), ignored (something else), unusable."}, []string{"result"}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{Name: "tollgate_consumer_price_book_failures_total",
			Help: "Failed tries to fetch or store; they are repeated."})}
	reg.MustRegister(c.messages, c.failures)
	for _, r := range []string{stored, ignored, unusable} {
		c.messages.WithLabelValues(r)
	}
	return c
}

// Run copies until ctx ends, and returns nil then.
func (c *Copier) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		messages := c.batch(ctx)
		if len(messages) == 0 {
			continue
		}
		if !c.retry(ctx, "store prices and zones", func(ctx context.Context) error { return c.copy(ctx, messages) }) {
			return nil
		}
	}
	return nil
}

// batch waits for a message, and then a moment for more.
func (c *Copier) batch(ctx context.Context) []consume.Message {
	var out []consume.Message
	fetch := func(ctx context.Context) error {
		m, err := c.source.Fetch(ctx)
		if err == nil {
			out = append(out, m)
		}
		return err
	}
	if !c.retry(ctx, "fetch", fetch) {
		return nil
	}
	more, cancel := context.WithTimeout(ctx, gather)
	defer cancel()
	for len(out) < mostMessages && fetch(more) == nil {
	}
	return out
}

func (c *Copier) copy(ctx context.Context, messages []consume.Message) error {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	var prices []Price
	var zones []Zone
	bad := map[int]error{}
	for i, m := range messages {
		p, z, err := decode(m)
		switch {
		case err != nil:
			bad[i] = err
		case p != nil:
			prices = append(prices, *p)
		case z != nil:
			known, err := c.store.KnowsZone(ctx, z.Name)
			if err != nil {
				return err
			}
			if !known {
				bad[i] = fmt.Errorf("ClickHouse knows no time zone %q: org %s keeps the one it had", z.Name, z.OrgID)
				continue
			}
			zones = append(zones, *z)
		}
	}
	if len(prices)+len(zones) > 0 {
		if err := c.store.Store(ctx, prices, zones); err != nil {
			return err
		}
	}
	for i, err := range bad {
		at := messages[i].Position
		c.log.Error("a change can't be used and is passed over", "err", err, "topic", at.Topic, "partition", at.Partition, "offset", at.Offset)
	}
	n := len(prices) + len(zones)
	c.messages.WithLabelValues(stored).Add(float64(n))
	c.messages.WithLabelValues(unusable).Add(float64(len(bad)))
	c.messages.WithLabelValues(ignored).Add(float64(len(messages) - n - len(bad)))
	return nil
}

// retry calls do until it succeeds; false: ctx ended first.
func (c *Copier) retry(ctx context.Context, what string, do func(context.Context) error) bool {
	for wait := retryMin; ; wait = min(2*wait, retryMax) {
		err := do(ctx)
		if err == nil {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		c.failures.Inc()
		c.log.Warn("a step of the price book failed; trying again", "step", what, "err", err, "wait", wait.String())
		if !lifecycle.Sleep(ctx, wait) {
			return false
		}
	}
}
