package pgquota

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Fence is an outbox row that Redis may not know yet: redisfence.Publish takes Shards (empty: all), Name and Version. A later version of
// a name does not stand for an earlier one: the subject may have changed org, hence shard, in between.
type Fence struct {
	ID      int64
	Name    string
	Version int64
	Shards  []int
}

// Message is an outbox row that Kafka has not acknowledged. Name is its key.
type Message struct {
	ID        int64
	Kind      string
	Name      string
	Version   int64
	EventID   uuid.UUID
	Payload   []byte
	CreatedAt time.Time
}

// Backlog is what waits in the outbox, and how long the oldest has.
type Backlog struct {
	Redis, Kafka       int64
	RedisAge, KafkaAge time.Duration
}

func scanFence(r pgx.CollectableRow) (Fence, error) {
	var f Fence
	return f, r.Scan(&f.ID, &f.Name, &f.Version, &f.Shards)
}

type manyQuerier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// fencesOf gives what Redis may not know of a name, and of the others that it depends on.
func fencesOf(ctx context.Context, q manyQuerier, name string, others ...string) ([]Fence, error) {
	rows, err := q.Query(ctx, sqlOutboxRedisByName, append([]string{name}, others...))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanFence)
}

// Fences gives what Redis may not know of the given names.
func (s *Store) Fences(ctx context.Context, names []string) ([]Fence, error) {
	var fs []Fence
	err := s.read(ctx, func() error {
		rows, err := s.pool.Query(ctx, sqlOutboxRedisByName, names)
		if err != nil {
			return err
		}
		fs, err = pgx.CollectRows(rows, scanFence)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read outbox: %w", err)
	}
	return fs, nil
}

// PendingFences lists what Redis may not know yet, oldest first.
func (s *Store) PendingFences(ctx context.Context, limit int) ([]Fence, error) {
	rows, err := s.pool.Query(ctx, sqlOutboxRedis, limit)
	if err != nil {
		return nil, fmt.Errorf("read outbox: %w", err)
	}
	fs, err := pgx.CollectRows(rows, scanFence)
	if err != nil {
		return nil, fmt.Errorf("read outbox: %w", err)
	}
	return fs, nil
}

// MarkFenced notes that Redis knows of the given rows.
func (s *Store) MarkFenced(ctx context.Context, ids []int64) error {
	if _, err := s.pool.Exec(ctx, sqlMarkRedis, ids); err != nil {
		return fmt.Errorf("mark outbox: %w", err)
	}
	return nil
}

// Backlog counts what waits.
func (s *Store) Backlog(ctx context.Context) (Backlog, error) {
	var b Backlog
	var redis, kafka float64
	if err := s.pool.QueryRow(ctx, sqlOutboxBacklog).Scan(&b.Redis, &redis, &b.Kafka, &kafka); err != nil {
		return Backlog{}, fmt.Errorf("count outbox: %w", err)
	}
	b.RedisAge, b.KafkaAge = time.Duration(redis*float64(time.Second)), time.Duration(kafka*float64(time.Second))
	return b, nil
}

// Prune drops rows that Redis and Kafka have both had for longer than age. The event tables keep the history.
func (s *Store) Prune(ctx context.Context, age time.Duration) (int64, error) {
	tag, err := s.pool.Exec(ctx, sqlPruneOutbox, age)
	if err != nil {
		return 0, fmt.Errorf("prune outbox: %w", err)
	}
	return tag.RowsAffected(), nil
}

// relayLock is the advisory lock of the one who writes to Kafka, in the two-number space so that no name's lock can equal it.
const relayClass, relayObject = 0x746f6c6c, 1

// Leader is the one instance that may write the outbox to Kafka. It works on the connection that holds the lock: when that is lost, so
// is the lock, and the next call fails.
type Leader struct{ conn *pgx.Conn }

// Lead runs f while this instance is the leader. false: another instance is. The leadership ends with f.
func (s *Store) Lead(ctx context.Context, f func(context.Context, *Leader) error) (bool, error) {
	pooled, err := s.pool.Acquire(ctx)
	if err != nil {
		return false, fmt.Errorf("lead the outbox: %w", err)
	}
	conn := pooled.Hijack() // closed below, not returned: a closed connection surely holds no lock
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(closing) // the lock goes with it, or with the server's view of a dead client
	}()
	var got bool
	if err := conn.QueryRow(ctx, "SELECT pg_try_advisory_lock($1, $2)", relayClass, relayObject).Scan(&got); err != nil {
		return false, fmt.Errorf("lead the outbox: %w", err)
	}
	if !got {
		return false, nil
	}
	return true, f(ctx, &Leader{conn})
}

// Pending lists what Kafka has not acknowledged, oldest first.
func (l *Leader) Pending(ctx context.Context, limit int) ([]Message, error) {
	rows, err := l.conn.Query(ctx, sqlOutboxKafka, limit)
	if err != nil {
		return nil, fmt.Errorf("read outbox: %w", err)
	}
	ms, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (Message, error) {
		var m Message
		err := r.Scan(&m.ID, &m.Kind, &m.Name, &m.Version, &m.EventID, &m.Payload, &m.CreatedAt)
		return m, err
	})
	if err != nil {
		return nil, fmt.Errorf("read outbox: %w", err)
	}
	return ms, nil
}

// MarkSent notes that Kafka has acknowledged the given rows.
func (l *Leader) MarkSent(ctx context.Context, ids []int64) error {
	if _, err := l.conn.Exec(ctx, sqlMarkKafka, ids); err != nil {
		return fmt.Errorf("mark outbox: %w", err)
	}
	return nil
}
