package httpapi

import (
	"net/http"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/strictjson"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/usage"
	"github.com/tollgate-dev/tollgate/services/enforcement/internal/decide"
)

// rooms is what three fields of an answer say per dimension. null: unlimited.
type rooms struct {
	Limit     map[string]*int64      `json:"limit"`
	Remaining map[string]*int64      `json:"remaining"`
	ResetAt   map[string]*usage.Time `json:"reset_at"` // when the bucket is full again; slots have no such time
}

func roomsOf(list []decide.Room) rooms {
	out := rooms{Limit: map[string]*int64{}, Remaining: map[string]*int64{}, ResetAt: map[string]*usage.Time{}}
	for _, r := range list {
		out.Limit[r.Dimension], out.Remaining[r.Dimension] = nil, nil
		if r.Dimension != decide.Concurrent {
			out.ResetAt[r.Dimension] = nil
		}
		if r.Limit == 0 {
			continue
		}
		out.Limit[r.Dimension], out.Remaining[r.Dimension] = &r.Limit, &r.Remaining
		if r.Dimension != decide.Concurrent {
			at := instant(r.ResetAt)
			out.ResetAt[r.Dimension] = &at
		}
	}
	return out
}

// lastYear is the last that RFC 3339 can write. A bucket in deep debt resets later; that is told as the end of it.
const lastYear = 9999

func instant(t time.Time) usage.Time {
	if t.UTC().Year() > lastYear {
		t = time.Date(lastYear, 12, 31, 23, 59, 59, 0, time.UTC)
	}
	return usage.At(t)
}

// headersOf gives the headers of DESIGN §8 for the caller to pass on. An unlimited dimension has none.
func headersOf(list []decide.Room) map[string]string {
	h := map[string]string{}
	for _, r := range list {
		if r.Limit == 0 {
			continue
		}
		name := headerName(r.Dimension)
		h["X-RateLimit-Limit-"+name] = strconv.FormatInt(r.Limit, 10)
		h["X-RateLimit-Remaining-"+name] = strconv.FormatInt(r.Remaining, 10)
		if r.Dimension != decide.Concurrent {
			h["X-RateLimit-Reset-"+name] = instant(r.ResetAt).String()
		}
	}
	return h
}

type checkAnswer struct {
	Allowed        bool      `json:"allowed"`
	RequestID      uuid.UUID `json:"request_id"`
	Model          string    `json:"model"`
	ReservedTokens int64     `json:"reserved_tokens"`
	LeaseMS        int64     `json:"lease_ms"`
	RetryAfterMS   int64     `json:"retry_after_ms"`
	Reason         string    `json:"reason"`
	Scope          string    `json:"scope"`
	rooms
	Headers      map[string]string `json:"headers"`
	QuotaVersion int64             `json:"quota_version"`
	Degraded     bool              `json:"degraded"`
}

func (s *server) check(w http.ResponseWriter, r *http.Request) error {
	var b checkBody
	if err := strictjson.Read(r, &b); err != nil {
		return err
	}
	req, err := b.request()
	if err != nil {
		return err
	}
	start := time.Now()
	a, err := s.engine.Check(r.Context(), req)
	if !req.DryRun {
		s.m.check(a, req.Model, err, time.Since(start))
	}
	if err != nil {
		return failure(err, "No decision could be made in time. Repeat the check; with the same request_id it is charged once.")
	}
	return writeJSON(w, checkAnswer{Allowed: a.Allowed, RequestID: a.RequestID, Model: a.Model, ReservedTokens: a.Reserved,
		LeaseMS: a.Lease.Milliseconds(), RetryAfterMS: a.RetryAfter.Milliseconds(), Reason: a.Reason, Scope: string(a.Scope), rooms: roomsOf(a.Rooms), Headers: headersOf(a.Rooms),
		QuotaVersion: a.QuotaVersion, Degraded: a.Degraded})
}

type consumeAnswer struct {
	Allowed        bool              `json:"allowed"`
	Reason         string            `json:"reason"`
	RetryAfterMS   int64             `json:"retry_after_ms"`
	Remaining      map[string]*int64 `json:"remaining"`
	LeaseExpiresAt *usage.Time       `json:"lease_expires_at"` // null: there is no open reservation
	LeaseMS        int64             `json:"lease_ms"`
	Degraded       bool              `json:"degraded"`
}

func (s *server) consume(w http.ResponseWriter, r *http.Request) error {
	var b consumeBody
	if err := strictjson.Read(r, &b); err != nil {
		return err
	}
	draw, err := b.draw()
	if err != nil {
		return err
	}
	d, err := s.engine.Consume(r.Context(), draw)
	s.m.consume(d, err)
	if err != nil {
		return failure(err, "The tokens could not be drawn in time. If the call is repeated they may be drawn twice; the record sets that right.")
	}
	a := consumeAnswer{Allowed: d.Allowed, Reason: d.Reason, RetryAfterMS: d.RetryAfter.Milliseconds(), Remaining: roomsOf(d.Rooms).Remaining,
		LeaseMS: d.Lease.Milliseconds(), Degraded: d.Degraded}
	if !d.LeaseUntil.IsZero() {
		at := instant(d.LeaseUntil)
		a.LeaseExpiresAt = &at
	}
	return writeJSON(w, a)
}

type recordAnswer struct {
	Success         bool      `json:"success"`
	AlreadyRecorded bool      `json:"already_recorded"`
	EventID         uuid.UUID `json:"event_id"`
}

func (s *server) record(w http.ResponseWriter, r *http.Request) error {
	var b recordBody
	if err := strictjson.Read(r, &b); err != nil {
		return err
	}
	used, err := b.used()
	if err != nil {
		return err
	}
	rec, err := s.engine.Record(r.Context(), used)
	s.m.record(used.Outcome, rec.Status, err)
	if err != nil {
		return failure(err, "The usage event is not durable yet. Repeat the record with the same request_id: it is charged and billed once.")
	}
	return writeJSON(w, recordAnswer{Success: true, AlreadyRecorded: rec.AlreadyRecorded(), EventID: rec.EventID})
}

type statusAnswer struct {
	UserID   string `json:"user_id,omitempty"`
	APIKeyID string `json:"api_key_id,omitempty"`
	Tier     string `json:"tier"`
	OrgID    string `json:"org_id"`
	rooms
	InFlight     int64 `json:"in_flight"`
	Suspended    bool  `json:"suspended"`
	QuotaVersion int64 `json:"quota_version"`
	Degraded     bool  `json:"degraded"`
}

func (s *server) userStatus(w http.ResponseWriter, r *http.Request) error {
	return s.status(w, r, subject.User, "user_id")
}

func (s *server) keyStatus(w http.ResponseWriter, r *http.Request) error {
	return s.status(w, r, subject.APIKey, "key_id")
}

func (s *server) status(w http.ResponseWriter, r *http.Request, kind subject.Kind, param string) error {
	sub, err := pathSubject(r, kind, param)
	if err != nil {
		return err
	}
	st, err := s.engine.Status(r.Context(), sub)
	if err != nil {
		return failure(err, "The status could not be read in time. Repeat the call.")
	}
	a := statusAnswer{Tier: st.Tier, OrgID: st.OrgID, rooms: roomsOf(st.Rooms), InFlight: st.InFlight, Suspended: st.Suspended, QuotaVersion: st.QuotaVersion,
		Degraded: st.Degraded}
	if kind == subject.User {
		a.UserID = sub.ID
	} else {
		a.APIKeyID = sub.ID
	}
	return writeJSON(w, a)
}
