package traffic

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/client"
	"github.com/tollgate-dev/tollgate/pkg/tier"
)

// Billed is what the ledger has of a request: a refusal has no tokens.
type Billed struct {
	Input, Output int64
	Outcome       string // of a usage record; rejected: a refusal
	Reason        string // of a refusal
}

// Book reads the ledger.
type Book interface {
	// Billed gives what the ledger has of each of ids by now.
	Billed(ctx context.Context, ids []uuid.UUID) (map[uuid.UUID]Billed, error)
}

// step is one line of the story.
type step struct {
	what, answer string
	id           uuid.UUID // of the request that the ledger is asked for; none: nothing is billed
}

// Story is what happens to a customer of whom Tollgate has never heard: a request at a time.
type Story struct {
	Customer
	steps  []step
	billed map[uuid.UUID]Billed
}

// NewStory makes a key for a new customer.
func NewStory(ctx context.Context, q Quotas) (*Story, error) {
	user := "ann-" + strings.ToLower(rand.Text()[:5]) // a new one at every start, whose limits are all unused
	k, err := q.CreateKey(ctx, client.NewKey{UserID: user, Name: keyName})
	if err != nil {
		return nil, fmt.Errorf("make a key of %s: %w", user, err)
	}
	return &Story{Customer: Customer{user, k}}, nil
}

const (
	small, big = "grok-2-mini", "grok-4"
	mostTries  = 20 // until a limit of 10 a minute refuses
)

// Tell sends the requests and calls show after each. It returns when the ledger has all of them. Error: something was not answered as it should have been.
func (s *Story) Tell(ctx context.Context, api Asker, q Quotas, book Book, show func()) error {
	ask := func(what, secret string, r Request, want int) error {
		a, err := api.Ask(ctx, secret, r)
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		st := step{what: what, answer: a.text(r), id: a.ID}
		if a.Status == http.StatusUnauthorized {
			st.id = uuid.Nil // nobody is known who could be billed
		}
		s.steps = append(s.steps, st)
		show()
		if a.Status != want {
			return fmt.Errorf("%s was answered with %s, want %d", what, st.answer, want)
		}
		return nil
	}
	chat := func(model string, stream bool) Request {
		body := chatBody(model, "What is a tollgate?")
		body["max_tokens"] = 12
		if stream {
			body["stream"] = true
		}
		return Request{Body: body}
	}
	leaver := chat(small, true)
	leaver.Leave = 4
	for _, st := range []struct {
		what, secret string
		request      Request
		want         int
	}{
		{"chat, " + small, s.Key.Secret, chat(small, false), http.StatusOK},
		{"the same as a stream", s.Key.Secret, chat(small, true), http.StatusOK},
		{"embeddings of two texts", s.Key.Secret, Request{Path: "embeddings", Body: map[string]any{"model": small, "input": []string{"a toll", "a gate"}}}, http.StatusOK},
		{"a stream that she leaves", s.Key.Secret, leaver, http.StatusOK},
		{"chat, " + big + ": free has small models only", s.Key.Secret, chat(big, false), http.StatusForbidden},
		{"chat, with a key that nobody made", "tg-" + strings.Repeat("x", 40), chat(small, false), http.StatusUnauthorized},
	} {
		if err := ask(st.what, st.secret, st.request, st.want); err != nil {
			return err
		}
	}
	if err := s.untilRefused(ctx, api, chat(small, false), show); err != nil {
		return err
	}
	changed, err := q.PutQuota(ctx, s.User, client.QuotaChange{Tier: tier.Plus, Reason: "bought plus"})
	if err != nil {
		return fmt.Errorf("put %s on the plus tier: %w", s.User, err)
	}
	s.steps = append(s.steps, step{what: "an admin sells her plus", answer: fmt.Sprintf("tier %s, version %d", changed.Tier, changed.Version)})
	show()
	if err := ask("chat, "+big+": the very next request", s.Key.Secret, chat(big, false), http.StatusOK); err != nil {
		return err
	}
	return s.await(ctx, book, show)
}

// untilRefused asks on until the limit of requests per minute refuses.
func (s *Story) untilRefused(ctx context.Context, api Asker, r Request, show func()) error {
	for n := 1; n <= mostTries; n++ {
		a, err := api.Ask(ctx, s.Key.Secret, r)
		switch {
		case err != nil:
			return fmt.Errorf("request %d of those that a limit is to refuse: %w", n, err)
		case a.Status == http.StatusOK:
			continue
		}
		s.steps = append(s.steps, step{fmt.Sprintf("more of them: number %d is too many", n), a.text(r), a.ID})
		show()
		if a.Status != http.StatusTooManyRequests || a.Wait <= 0 {
			return fmt.Errorf("request %d was answered with %s, want 429 and a wait", n, a.text(r))
		}
		return nil
	}
	return fmt.Errorf("free has 10 requests a minute, and %d more were served", mostTries)
}

// text is the answer as its client sees it.
func (a Answer) text(r Request) string {
	switch {
	case a.Status == http.StatusTooManyRequests:
		return fmt.Sprintf("%d, come again in %.1f s", a.Status, a.Wait.Seconds())
	case a.Status != http.StatusOK:
		return fmt.Sprintf("%d %s", a.Status, a.Code)
	case r.Leave > 0:
		return fmt.Sprintf("%d, left at event %d", a.Status, a.Events)
	case a.Done:
		return fmt.Sprintf("%d, %d events, [DONE]", a.Status, a.Events)
	}
	return fmt.Sprintf("%d, usage %d + %d", a.Status, a.Input, a.Output)
}

// ledgerWithin is how long the ledger may take to have an event.
const ledgerWithin = 30 * time.Second

// await waits until the ledger has every request.
func (s *Story) await(ctx context.Context, book Book, show func()) error {
	var ids []uuid.UUID
	for _, st := range s.steps {
		if st.id != uuid.Nil {
			ids = append(ids, st.id)
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, ledgerWithin, errors.New("the ledger does not have all of them"))
	defer cancel()
	for {
		var err error
		if s.billed, err = book.Billed(ctx, ids); err == nil && len(s.billed) == len(ids) {
			show()
			return nil
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		}
	}
}

// Lines shows the story in lines for 80 columns.
func (s *Story) Lines() []string {
	const row = "  %-40s  %-24s  %s"
	lines := []string{fmt.Sprintf(row, s.User+" asks for", "and gets", "ledger")}
	for _, st := range s.steps {
		b, ok := s.billed[st.id]
		said := "…"
		switch {
		case st.id == uuid.Nil:
			said = "–"
		case ok && b.Reason != "":
			said = "no: " + short(b.Reason)
		case ok:
			said = fmt.Sprintf("%d + %d", b.Input, b.Output)
		}
		lines = append(lines, fmt.Sprintf(row, st.what, st.answer, said))
	}
	return lines
}

func short(reason string) string {
	if reason == "model_not_allowed" {
		return "model"
	}
	return reason
}
