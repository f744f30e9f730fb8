package proxy

import (
	"context"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/client"
)

// Reasons of a draw that finds no open reservation (schemas/openapi/enforcement.yaml).
const (
	reservationEnded   = "reservation_ended"
	reservationUnknown = "reservation_unknown"
)

// lostTries is how often a lost check is asked after.
const lostTries = 5

// giveBack ends, in the background, what a check has taken whose answer did not come in time: else its slot would be held until the lease ends.
// Only a request that enforcement knows is recorded, with nothing used; so one that was never granted gets no record. A check that is made
// even later than LostAfter is left to its lease.
func (f *flight) giveBack(ask client.CheckRequest) {
	ctx := context.WithoutCancel(f.ctx)
	f.s.pending.Go(func() {
		for range lostTries {
			time.Sleep(f.s.o.LostAfter) // nobody waits for it but the stop
			if f.s.asked(ctx, f, ask) {
				return
			}
		}
		f.x.log.WarnContext(ctx, "a check without an answer may hold a slot until its lease ends", "subject", f.x.who.Subject.String())
	})
}

// asked asks after a lost check and ends it. false: it has to be asked again.
func (s *Server) asked(ctx context.Context, f *flight, ask client.CheckRequest) bool {
	ctx, cancel := context.WithTimeout(ctx, s.o.LostAfter)
	defer cancel()
	d, err := s.o.Enforcement.Consume(ctx, client.ConsumeRequest{UserID: ask.UserID, APIKeyID: ask.APIKeyID, RequestID: ask.RequestID})
	switch {
	case err != nil:
		return false
	case d.Reason == reservationEnded || d.Reason == reservationUnknown:
		return true
	}
	_, err = s.o.Enforcement.Record(ctx, client.RecordRequest{UserID: ask.UserID, APIKeyID: ask.APIKeyID, RequestID: ask.RequestID, Model: ask.Model,
		LatencyMS: time.Since(f.x.arrived).Milliseconds(), Outcome: outcomeFailed})
	return err == nil
}
