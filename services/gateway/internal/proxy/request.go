package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/auth"
	"github.com/tollgate-dev/tollgate/pkg/client"
	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/services/gateway/internal/body"
	"github.com/tollgate-dev/tollgate/services/gateway/internal/identity"
	"github.com/tollgate-dev/tollgate/services/gateway/internal/tokens"
)

var (
	errPanicked   = errors.New("a handler panicked")
	errNoDecision = errors.New("no decision could be had")
)

// undecided marks the errors of enforcement that pass by themselves. Any other is a fault of ours.
func undecided(err error) error {
	if client.Unavailable(err) {
		return fmt.Errorf("%w: %w", errNoDecision, err)
	}
	return err
}

// identified lets only bearers of a good credential through. Their faulty requests get their limits told, too.
func (s *Server) identified(h handlerFunc) handlerFunc {
	return func(x *exchange) error {
		if len(x.r.Header["Authorization"]) > 1 { // a proxy before us may have looked at the other one
			return &identity.Unauthorized{Detail: "Send one Authorization header."}
		}
		x.token = auth.Bearer(x.r)
		var err error
		if x.who, err = s.o.Identities.Find(x.r.Context(), x.token); err != nil {
			return err
		}
		if err = h(x); err == nil {
			return nil
		}
		if e := asAPIError(err); e.limits == nil && (e.outcome == outcomeInvalid || e.outcome == outcomeRefused) {
			d, err := s.look(context.WithoutCancel(x.r.Context()), x) // who has broken off the body may still read
			if err != nil {
				return err
			}
			e.limits = &d
			return e
		}
		return err
	}
}

// look reads the caller's limits and consumes nothing. A credential that is no longer good is refused, and so is one that is suspended.
func (s *Server) look(ctx context.Context, x *exchange) (client.Decision, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	read := s.o.Enforcement.UserStatus
	if x.who.Subject.Kind == subject.APIKey {
		read = s.o.Enforcement.KeyStatus
	}
	st, err := read(ctx, x.who.Subject.ID)
	if err != nil {
		return client.Decision{}, undecided(err)
	}
	if err := s.o.Identities.Confirm(ctx, x.token, x.who, st.QuotaVersion); err != nil {
		return client.Decision{}, err
	}
	d := client.Decision{Room: st.Room, QuotaVersion: st.QuotaVersion, Headers: headersOf(st.Room)}
	if st.Suspended {
		d.Reason = "suspended"
		return d, refusal(d)
	}
	return d, nil
}

// headersOf are those of DESIGN §8, as a decision bears them. An unlimited dimension has none.
func headersOf(r client.Room) map[string]string {
	h := map[string]string{}
	for dimension, most := range r.Limit {
		if most == nil {
			continue
		}
		words := strings.Split(dimension, "_")
		for i, w := range words {
			words[i] = strings.ToUpper(w[:1]) + w[1:]
		}
		name := strings.Join(words, "-")
		h["X-RateLimit-Limit-"+name] = strconv.FormatInt(*most, 10)
		if left := r.Remaining[dimension]; left != nil {
			h["X-RateLimit-Remaining-"+name] = strconv.FormatInt(*left, 10)
		}
		if at := r.ResetAt[dimension]; at != nil {
			h["X-RateLimit-Reset-"+name] = at.UTC().Format("2006-01-02T15:04:05.000Z07:00")
		}
	}
	return h
}

func (s *Server) checkRequest(x *exchange, model string) client.CheckRequest {
	c := client.CheckRequest{RequestID: x.id, Model: model}
	if x.who.Subject.Kind == subject.APIKey {
		c.APIKeyID = x.who.Subject.ID
	} else {
		c.UserID = x.who.Subject.ID
	}
	return c
}

// generate serves the paths that use tokens.
func (s *Server) generate(kind tokens.Kind) handlerFunc {
	return func(x *exchange) error {
		defer x.forget()
		text, err := s.readBody(x)
		if err != nil {
			return err
		}
		req, err := body.Parse(text)
		if err != nil {
			var f *body.FieldError
			if !errors.As(err, &f) {
				return invalid("", "The body is no JSON object: "+err.Error())
			}
			return err
		}
		x.model = req.Model
		f := &flight{s: s, x: x, kind: kind, req: req, ctx: x.r.Context()}
		f.used.newText = func() *tokens.Text { return s.o.Counter.NewText(f.res.Decision.Model) }
		counted, err := s.o.Counter.Count(kind, req.Model, text)
		if err != nil {
			return err
		}
		f.input, f.choices = min(counted.Tokens, limit.MaxAmount/2), req.Choices
		if counted.Prompts > 1 {
			f.choices = min(req.Choices, maxChoices) * min(counted.Prompts, maxChoices)
		}
		f.output, f.bounded = s.reserveFor(kind, req, f.choices)
		s.pending.begin()
		defer s.pending.end()
		defer f.settle(outcomeFailed) // of a panic; any other end has settled it by now
		if err := f.reserve(); err != nil {
			return err
		}
		s.m.inFlight.Inc()
		defer s.m.inFlight.Dec()
		if served := f.res.Decision.Model; served != "" && served != req.Model {
			req.SetModel(served)
			x.w.Header().Set("X-Tollgate-Requested-Model", req.Model)
			x.w.Header().Set("X-Tollgate-Served-Model", served)
		}
		req.AskForUsage()
		return f.fly()
	}
}

// maxChoices bounds a factor, so that products of two stay exact.
const maxChoices = 1 << 20

// reserveFor is how many output tokens are reserved, and whether the request itself bounds them.
func (s *Server) reserveFor(kind tokens.Kind, req *body.Request, choices int64) (n int64, bounded bool) {
	if kind == tokens.Embedding {
		return 0, true
	}
	n = s.o.Predicted
	if req.MaxTokens != nil {
		n, bounded = *req.MaxTokens, true
	}
	if most, ok := s.o.MaxOutput[req.Model]; ok {
		n = min(n, most)
	}
	if n > 0 && choices > limit.MaxAmount/2/n {
		return limit.MaxAmount / 2, bounded
	}
	return n * choices, bounded
}

// reserve asks for the decision. The client leaving does not stop it: what a check has taken has to be given back, and only its answer tells
// whether there is anything.
func (f *flight) reserve() error {
	x, s := f.x, f.s
	ctx := context.WithoutCancel(f.ctx)
	ask := s.checkRequest(x, f.req.Model)
	ask.InputTokens, ask.MaxOutputTokens = &f.input, &f.output
	answered := false
	defer func() {
		if !answered { // a panic: nobody knows what was taken
			f.giveBack(ask)
		}
	}()
	res, err := s.o.Enforcement.Reserve(ctx, ask)
	answered = true
	var refused *client.Refused
	switch {
	case errors.As(err, &refused):
		if gone := s.o.Identities.Confirm(ctx, x.token, x.who, refused.Decision.QuotaVersion); gone != nil {
			return gone
		}
		return err
	case err != nil:
		if err = undecided(err); errors.Is(err, errNoDecision) {
			f.giveBack(ask)
		}
		return err
	}
	f.res = res
	if gone := s.o.Identities.Confirm(ctx, x.token, x.who, res.Decision.QuotaVersion); gone != nil {
		f.settle(outcomeCancelled)
		return gone
	}
	s.limits(x.w.Header(), res.Decision)
	return nil
}

// models lists what the server has. It costs nothing, but is for those who may ask for something.
func (s *Server) models(x *exchange) error {
	d, err := s.look(x.r.Context(), x)
	if err != nil {
		return err
	}
	s.limits(x.w.Header(), d)
	resp, err := s.send(x.r.Context(), x, nil)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := s.readAnswer(resp)
	if err != nil {
		return err
	}
	return s.whole(x, resp, bytes.NewReader(text), len(text))
}
