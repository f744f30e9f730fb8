package pgquota

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tollgate-dev/tollgate/pkg/subject"
)

// Events reads a subject's history, oldest first, from the version after the given one.
func (s *Store) Events(ctx context.Context, sub subject.Subject, after int64, limit int) ([]Event, error) {
	return s.EventsOf(ctx, sub.String(), after, limit)
}

// EventsOf is Events of a name: "user:u1", "api_key:k1" or "org:o1".
func (s *Store) EventsOf(ctx context.Context, name string, after int64, limit int) ([]Event, error) {
	return s.EventsWithin(ctx, name, "", after, limit)
}

// EventsWithin is EventsOf, of those that led into or out of the org or happened within it. "": all.
func (s *Store) EventsWithin(ctx context.Context, name, orgID string, after int64, limit int) ([]Event, error) {
	return s.listEvents(ctx, name, sqlListEvents, name, after, limit, orgID)
}

// KeyEventsWithin is Events of a key that a user owns, of those that happened while the user was in the org.
func (s *Store) KeyEventsWithin(ctx context.Context, key, user subject.Subject, orgID string, after int64, limit int) ([]Event, error) {
	return s.listEvents(ctx, key.String(), sqlListKeyEvents, key.String(), after, limit, orgID, user.String())
}

func (s *Store) listEvents(ctx context.Context, name, sql string, args ...any) ([]Event, error) {
	var es []Event
	err := s.read(ctx, func() error {
		rows, err := s.pool.Query(ctx, sql, args...)
		if err != nil {
			return err
		}
		es, err = pgx.CollectRows(rows, scanEvent)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read events of %s: %w", name, err)
	}
	return es, nil
}

func scanEvent(r pgx.CollectableRow) (Event, error) {
	var e Event
	var before, after []byte
	err := r.Scan(&e.Subject, &e.Version, &e.Actor, &e.Reason, &before, &after, &e.At)
	if err != nil {
		return Event{}, err
	}
	e.At = e.At.UTC()
	if e.Before, err = stateFromJSON(before); err != nil {
		return Event{}, fmt.Errorf("%s version %d: before: %w", e.Subject, e.Version, err)
	}
	if e.After, err = stateFromJSON(after); err != nil {
		return Event{}, fmt.Errorf("%s version %d: after: %w", e.Subject, e.Version, err)
	}
	return e, nil
}
