// Package clickhouseprices keeps the price book and the orgs' time zones in the LEDGER's database, beside the usage that they price. A row of a
// version that is stored already, or of an older one, changes nothing: both tables keep the highest version of each key, and the views read
// them with FINAL. When ClickHouse is away, calls fail and may be repeated.
package clickhouseprices

import (
	"context"
	_ "embed" // the statements
	"fmt"
	"sync"

	"github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"github.com/tollgate-dev/tollgate/services/consumer/internal/pricebook"
)

var (
	//go:embed insert_prices.sql
	sqlInsertPrices string
	//go:embed insert_zones.sql
	sqlInsertZones string
	//go:embed knows_zone.sql
	sqlKnowsZone string
)

// Store writes to one database.
type Store struct {
	conn  driver.Conn
	zones sync.Map // names that ClickHouse knows
}

var _ pricebook.Store = (*Store)(nil)

// Open makes a store. Nothing is dialled yet.
func Open(o *clickhouse.Options) (*Store, error) {
	o.MaxOpenConns, o.MaxIdleConns = 2, 1
	conn, err := clickhouse.Open(o)
	if err != nil {
		return nil, fmt.Errorf("open ClickHouse: %w", err)
	}
	return &Store{conn: conn}, nil
}

// Store implements pricebook.Store.
func (s *Store) Store(ctx context.Context, prices []pricebook.Price, zones []pricebook.Zone) error {
	err := s.insert(ctx, sqlInsertPrices, len(prices), func(b driver.Batch, i int) error {
		p := prices[i]
		return b.Append(p.Model, p.ValidFrom, p.Currency, p.Input, p.CachedInput, p.Output, uint64(p.Version), p.ChangedAt, p.Actor)
	})
	if err != nil {
		return fmt.Errorf("store %d prices: %w", len(prices), err)
	}
	err = s.insert(ctx, sqlInsertZones, len(zones), func(b driver.Batch, i int) error {
		z := zones[i]
		return b.Append(z.OrgID, z.Name, uint64(z.Version), z.ChangedAt)
	})
	if err != nil {
		return fmt.Errorf("store %d time zones: %w", len(zones), err)
	}
	return nil
}

func (s *Store) insert(ctx context.Context, statement string, n int, add func(driver.Batch, int) error) error {
	if n == 0 {
		return nil
	}
	b, err := s.conn.PrepareBatch(ctx, statement, driver.WithCloseOnFlush())
	if err != nil {
		return err
	}
	defer func() { _ = b.Close() }() // after Send it does nothing; before, the error is already told
	for i := range n {
		if err := add(b, i); err != nil {
			return err
		}
	}
	return b.Send()
}

// KnowsZone implements pricebook.Store. What ClickHouse knows once it knows until it is upgraded, so it is asked once a name.
func (s *Store) KnowsZone(ctx context.Context, name string) (bool, error) {
	if _, ok := s.zones.Load(name); ok {
		return true, nil
	}
	var n uint64
	if err := s.conn.QueryRow(ctx, sqlKnowsZone, name).Scan(&n); err != nil {
		return false, fmt.Errorf("ask for time zone %q: %w", name, err)
	}
	if n > 0 {
		s.zones.Store(name, true)
	}
	return n > 0, nil
}

// Close closes the connections.
func (s *Store) Close() error { return s.conn.Close() }
