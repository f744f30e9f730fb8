package httppeer

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/problem"
	"github.com/tollgate-dev/tollgate/pkg/strictjson"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/services/enforcement/internal/fallback"
)

// Path is where an instance is asked.
const Path = "/internal/instances/ask"

// question and answer are what goes over the wire. Durations and lengths in ms.
type question struct {
	Shard       int64     `json:"shard"`
	Earlier     []int     `json:"earlier,omitempty"`
	Subject     string    `json:"subject"`
	RequestID   uuid.UUID `json:"request_id"`
	Ended       bool      `json:"ended"`
	Actual      []int64   `json:"actual"`
	Tokens      int64     `json:"tokens"`
	LeaseMillis int64     `json:"lease_ms"`
}

type answer struct {
	Held    *settlement  `json:"held,omitempty"`
	Granted *grant       `json:"granted,omitempty"`
	Drawn   *consumption `json:"drawn,omitempty"`
}

type settlement struct {
	Status    limit.SettleStatus `json:"status"`
	At        time.Time          `json:"at"`
	CheckedAt time.Time          `json:"checked_at"`
	Reserved  limit.Amounts      `json:"reserved"`
	LeaseWas  time.Time          `json:"lease_was"`
	CheckMeta string             `json:"check_meta"`
	Meta      string             `json:"meta"`
	Emitted   bool               `json:"emitted"`
}

type grant struct {
	At         time.Time     `json:"at"`
	LeaseUntil time.Time     `json:"lease_until"`
	Reserved   limit.Amounts `json:"reserved"`
	Meta       string        `json:"meta"`
}

type consumption struct {
	Status      limit.ReservationStatus `json:"status"`
	Allowed     bool                    `json:"allowed"`
	Reason      string                  `json:"reason"`
	Scope       limit.ScopeKind         `json:"scope"`
	RetryMillis int64                   `json:"retry_after_ms"`
	At          time.Time               `json:"at"`
	LeaseUntil  time.Time               `json:"lease_until"`
}

// Token is what instances show each other. It is derived from the service token, which can't be found from it: whoever has himself asked, by an
// address of his own in Redis, learns nothing that is good for another call.
func Token(service string) string {
	mac := hmac.New(sha256.New, []byte(service))
	mac.Write([]byte("tollgate: instances ask each other"))
	return hex.EncodeToString(mac.Sum(nil))
}

// Client asks other instances. It is safe for concurrent use.
type Client struct {
	token string
	http  *http.Client
}

var _ fallback.Peers = (*Client)(nil)

// perPeer is how many connections to each instance are kept: questions come in bursts, one for each record that is under way.
const perPeer = 32

// New makes a Client that shows the Token of this service token.
func New(service string) *Client {
	return &Client{Token(service), &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: perPeer, MaxConnsPerHost: 4 * perPeer, IdleConnTimeout: time.Minute,
		DialContext: (&net.Dialer{Timeout: time.Second}).DialContext}}}
}

// Close drops the connections that are kept.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Ask implements fallback.Peers. The context bounds it.
func (c *Client) Ask(ctx context.Context, addr string, q fallback.Question) (fallback.Answer, error) {
	body, err := json.Marshal(question{int64(q.Shard), q.Earlier, q.Subject.String(), q.RequestID, q.Ended, q.Actual[:], q.Tokens, q.Lease.Milliseconds()})
	if err != nil {
		return fallback.Answer{}, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+Path, bytes.NewReader(body))
	if err != nil {
		return fallback.Answer{}, fmt.Errorf("ask instance %s: %w", addr, err)
	}
	r.Header.Set("Authorization", "Bearer "+c.token)
	r.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(r)
	if err != nil {
		return fallback.Answer{}, fmt.Errorf("ask instance %s: %w", addr, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, strictjson.MaxBody))
	var a answer
	switch {
	case err != nil:
	case resp.StatusCode != http.StatusOK:
		err = fmt.Errorf("it answered %d", resp.StatusCode)
	default:
		err = json.Unmarshal(b, &a)
	}
	if err != nil {
		return fallback.Answer{}, fmt.Errorf("ask instance %s: %w", addr, err)
	}
	return a.heard(), nil
}

func (a answer) heard() fallback.Answer {
	var out fallback.Answer
	if s := a.Held; s != nil {
		out.Held = &limit.Settlement{Status: s.Status, At: s.At, CheckedAt: s.CheckedAt, Reserved: s.Reserved, LeaseWas: s.LeaseWas, CheckMeta: s.CheckMeta,
			Meta: s.Meta, Emitted: s.Emitted, Degraded: true}
	}
	if g := a.Granted; g != nil {
		out.Granted = &fallback.Grant{At: g.At, LeaseUntil: g.LeaseUntil, Reserved: g.Reserved, Meta: g.Meta}
	}
	if c := a.Drawn; c != nil {
		out.Consumption = &limit.Consumption{Status: c.Status, Allowed: c.Allowed, Reason: c.Reason, Scope: c.Scope,
			RetryAfter: time.Duration(c.RetryMillis) * time.Millisecond, At: c.At, LeaseUntil: c.LeaseUntil, Degraded: true}
	}
	return out
}

// Answerer knows what was granted in this process.
type Answerer interface {
	Answer(ctx context.Context, q fallback.Question) (fallback.Answer, error)
}

// Handle answers another instance. The error is a *problem.Problem if the question is at fault.
func Handle(a Answerer, w http.ResponseWriter, r *http.Request) error {
	body, err := io.ReadAll(io.LimitReader(r.Body, strictjson.MaxBody))
	if err != nil {
		return problem.New(http.StatusBadRequest, problem.CodeMalformedJSON, "The body could not be read.").Because(err)
	}
	var q question
	if err := json.Unmarshal(body, &q); err != nil { // not strictly: a later release may ask for more
		return problem.New(http.StatusBadRequest, problem.CodeMalformedJSON, "The body is no question of another instance.").Because(err)
	}
	asked, err := q.checked()
	if err != nil {
		return err
	}
	known, err := a.Answer(context.WithoutCancel(r.Context()), asked)
	if err != nil {
		return err
	}
	b, err := json.Marshal(told(known))
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(b) // the one that asked takes it for unknown if this fails
	return nil
}

func told(k fallback.Answer) answer {
	var a answer
	if s := k.Held; s != nil {
		a.Held = &settlement{s.Status, s.At, s.CheckedAt, s.Reserved, s.LeaseWas, s.CheckMeta, s.Meta, s.Emitted}
	}
	if g := k.Granted; g != nil {
		a.Granted = &grant{g.At, g.LeaseUntil, g.Reserved, g.Meta}
	}
	if c := k.Consumption; c != nil {
		a.Drawn = &consumption{c.Status, c.Allowed, c.Reason, c.Scope, c.RetryAfter.Milliseconds(), c.At, c.LeaseUntil}
	}
	return a
}

func (q question) checked() (fallback.Question, error) {
	out := fallback.Question{Shard: int(q.Shard), Earlier: q.Earlier, RequestID: q.RequestID, Ended: q.Ended, Tokens: q.Tokens, Lease: time.Duration(q.LeaseMillis) * time.Millisecond}
	var faults []problem.FieldError
	bad := func(field, format string, args ...any) {
		faults = append(faults, problem.FieldError{Field: field, Detail: fmt.Sprintf(format, args...)})
	}
	var err error
	if out.Subject, err = subject.Parse(q.Subject); err != nil {
		bad("subject", "%v", err)
	}
	if q.Shard < 0 || q.Shard >= subject.Shards {
		bad("shard", "must be from 0 to %d, is %d", subject.Shards-1, q.Shard)
	}
	for _, shard := range q.Earlier {
		if shard < 0 || shard >= subject.Shards {
			bad("earlier", "shards must be from 0 to %d, one is %d", subject.Shards-1, shard)
		}
	}
	if len(q.Actual) > len(out.Actual) {
		bad("actual", "has %d amounts, at most %d are known", len(q.Actual), len(out.Actual))
	} else {
		copy(out.Actual[:], q.Actual)
	}
	for _, n := range append(q.Actual, q.Tokens) {
		if n < 0 || n > limit.MaxAmount {
			bad("actual", "amounts must be from 0 to %d, one is %d", limit.MaxAmount, n)
		}
	}
	if q.LeaseMillis < 0 || q.LeaseMillis > limit.MaxWindow.Milliseconds() {
		bad("lease_ms", "must be from 0 to %d, is %d", limit.MaxWindow.Milliseconds(), q.LeaseMillis)
	}
	if len(faults) > 0 {
		return out, problem.Invalid(faults...)
	}
	return out, nil
}
