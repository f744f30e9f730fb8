package pgquota_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/shopspring/decimal"

	"github.com/tollgate-dev/tollgate/pkg/pgquota"
	"github.com/tollgate-dev/tollgate/pkg/price"
)

func amount(t *testing.T, text string) decimal.Decimal {
	t.Helper()
	d, err := decimal.NewFromString(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// priced states a price of grok-2 for all kinds of tokens.
func priced(t *testing.T, from time.Time, text string) pgquota.PriceChange {
	t.Helper()
	d := amount(t, text)
	return pgquota.PriceChange{Actor: "admin", Price: price.Price{Model: "grok-2", ValidFrom: from, Currency: "USD", Input: d, CachedInput: d, Output: d}}
}

func putPrice(t *testing.T, s *pgquota.Store, c pgquota.PriceChange) pgquota.PriceResult {
	t.Helper()
	r, err := s.PutPrice(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestPriceHoldsFromItsInstantUntilTheNext(t *testing.T) {
	s, _ := newDB(t)
	past, future := time.Now().Add(-time.Hour).UTC().Truncate(time.Millisecond), time.Now().Add(time.Hour).UTC().Truncate(time.Millisecond)
	if b, err := s.Prices(t.Context(), "grok-2"); err != nil || b.Version != 0 || b.InForce() != nil {
		t.Fatalf("unknown model: %+v, %v", b, err)
	}
	r := putPrice(t, s, priced(t, future, "5"))
	if !r.Changed || r.Book.Version != 1 || r.Book.InForce() != nil {
		t.Errorf("a future price: %+v", r)
	}
	r = putPrice(t, s, priced(t, past, "999999999999.999999999999"))
	if in := r.Book.InForce(); in == nil || in.Input.String() != "999999999999.999999999999" || r.Book.Version != 2 || len(r.Book.Entries) != 2 {
		t.Errorf("a past price: %+v", r)
	}
	r = putPrice(t, s, priced(t, time.Time{}, "7.5"))
	in := r.Book.InForce()
	if in == nil || in.Output.String() != "7.5" || time.Since(in.ValidFrom) > time.Minute || len(r.Book.Entries) != 3 || in.Actor != "admin" {
		t.Errorf("a price from now on: %+v", r)
	}
	books, err := s.PriceBook(t.Context())
	if err != nil || len(books) != 1 || books[0].Version != 3 {
		t.Errorf("%+v, %v", books, err)
	}
}

func TestSamePriceAgainIsNoChange(t *testing.T) {
	s, db := newDB(t)
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	putPrice(t, s, priced(t, at, "3"))
	for name, c := range map[string]pgquota.PriceChange{"same instant": priced(t, at, "3.000"), "in another zone": priced(t, at.In(time.FixedZone("", 7200)), "3"),
		"no instant": priced(t, time.Time{}, "3")} {
		if r := putPrice(t, s, c); r.Changed || r.Book.Version != 1 {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if r := putPrice(t, s, priced(t, at, "4")); !r.Changed || r.Book.Version != 2 || len(r.Book.Entries) != 1 || r.Book.Entries[0].Input.String() != "4" {
		t.Errorf("replaced: %+v", r)
	}
	var n int
	if err := db.QueryRow("SELECT count(*) FROM price_events").Scan(&n); err != nil || n != 2 {
		t.Errorf("%d events, %v", n, err)
	}
}

// What is stored is what the events add up to, and each event is on its way to Kafka under its price's own key, and not to Redis.
func TestPricesAreTheFoldOfTheirEvents(t *testing.T) {
	s, db := newDB(t)
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			c := priced(t, at.AddDate(0, i%4, 0), fmt.Sprintf("%d.%012d", i, i))
			if _, err := s.PutPrice(t.Context(), c); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	var differ, keys, versions int
	if err := db.QueryRow(`SELECT count(*) FROM (
		SELECT DISTINCT ON (model, valid_from) model, valid_from, version, actor, at, after ->> 'currency' AS c, (after ->> 'input_per_million')::numeric AS i,
		       (after ->> 'cached_input_per_million')::numeric AS k, (after ->> 'output_per_million')::numeric AS o
		FROM price_events ORDER BY model, valid_from, version DESC) AS f
		FULL JOIN prices AS p USING (model, valid_from)
		WHERE (f.version, f.actor, f.at, f.c, f.i, f.k, f.o) IS DISTINCT FROM
		      (p.version, p.actor, p.updated_at, p.currency, p.input_per_million, p.cached_input_per_million, p.output_per_million)`).Scan(&differ); err != nil {
		t.Fatal(err)
	}
	if err := db.QueryRow(`SELECT count(DISTINCT o.name), count(DISTINCT o.version) FROM outbox AS o WHERE o.kind = 'price' AND o.redis_published_at IS NOT NULL
		AND o.kafka_published_at IS NULL`).Scan(&keys, &versions); err != nil {
		t.Fatal(err)
	}
	if differ != 0 || keys != 4 || versions != 40 {
		t.Errorf("%d prices differ from their events; %d keys with %d versions, want 4 with 40", differ, keys, versions)
	}
	if fences, err := s.PendingFences(t.Context(), 10); err != nil || len(fences) != 0 {
		t.Errorf("waiting for Redis: %+v, %v", fences, err)
	}
	rows, err := db.Query("SELECT name, version, payload FROM outbox")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		var version int64
		var payload []byte
		if err := rows.Scan(&name, &version, &payload); err != nil {
			t.Fatal(err)
		}
		c, p, err := price.Decode(payload)
		if err != nil || price.Name(p.Model, p.ValidFrom) != name || c.Version != version {
			t.Errorf("%s: %s, %v", name, payload, err)
		}
	}
	if err := rows.Err(); err != nil {
		t.Error(err)
	}
}

func TestPriceIsGuardedByTheBooksVersion(t *testing.T) {
	s, _ := newDB(t)
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	c := priced(t, at, "1")
	c.If.Versions = []int64{0}
	putPrice(t, s, c)
	c = priced(t, at.AddDate(1, 0, 0), "2")
	c.If.Versions = []int64{0}
	var vm *pgquota.VersionMismatch
	if _, err := s.PutPrice(t.Context(), c); !errors.As(err, &vm) || vm.Current != 1 || vm.Name != "price:grok-2" {
		t.Errorf("%v", err)
	}
}
