package fallback

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/limit"
)

// The payer moves while the store is away: whoever has granted a request, here or there, its end finds it, and is counted once where the payer is.
func TestEndAfterAMoveFindsWhatWasGrantedBeforeIt(t *testing.T) {
	for name, away := range map[string]bool{"granted by the store": false, "granted here": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := start(t, 1, Options{})
				there := (shard + 77) % 256
				if away {
					w.trips(down)
				}
				ended, dropped, drawn := uuid.New(), uuid.New(), uuid.New()
				for _, id := range []uuid.UUID{ended, dropped, drawn} {
					w.check(id, wide, 100)
				}
				if !away {
					w.trips(down)
				}
				time.Sleep(time.Millisecond)

				again := request(ended, wide, 100)
				again.Shard, again.Earlier = there, []int{shard}
				if d, err := w.Check(t.Context(), again); err != nil || !d.Allowed || !d.Repeated {
					t.Errorf("asked again: %+v, %v", d, err)
				}
				c, err := w.Consume(t.Context(), limit.ConsumeRequest{Shard: there, Earlier: []int{shard}, Subject: user, RequestID: drawn, Scopes: wide, Tokens: 10})
				if err != nil || !c.Allowed || c.Status != limit.ReservationOpen {
					t.Errorf("went on: %+v, %v", c, err)
				}
				if done, err := w.Cancel(t.Context(), limit.CancelRequest{Shard: there, Earlier: []int{shard}, Subject: user, RequestID: dropped, Scopes: wide}); err != nil || !done {
					t.Errorf("cancelled: %v, %v", done, err)
				}
				for i, id := range []uuid.UUID{ended, drawn} {
					r := limit.SettleRequest{Shard: there, Earlier: []int{shard}, Subject: user, RequestID: id, Scopes: wide, Actual: limit.Usage(60+int64(i), 0), Meta: "settle"}
					s, err := w.Settle(t.Context(), r)
					if err != nil || s.Status != limit.Settled || s.Shard != shard || s.CheckMeta != "check" || s.Reserved[limit.Tokens] < 100 || !s.Degraded {
						t.Errorf("ended: %+v, %v", s, err)
					}
					if err := w.MarkEmitted(t.Context(), s.Shard, user, id); err != nil {
						t.Error(err)
					}
					if s, err := w.Settle(t.Context(), r); err != nil || s.Status != limit.AlreadySettled || !s.Emitted || s.Shard != shard {
						t.Errorf("ended again: %+v, %v", s, err)
					}
				}

				move := limit.Move{From: []int{shard}, To: []int{there}, Fence: limit.Fence{Name: user.String(), Version: 2}}
				if err := w.store.Memory.Carry(t.Context(), limit.CarryRequest{Moves: []limit.Move{move}, Scopes: []string{user.String()}}); err != nil {
					t.Fatal(err)
				}
				w.returns()
				time.Sleep(cancelOnce + time.Second)
				w.returns()
				st, err := w.store.Memory.Status(t.Context(), limit.StatusRequest{Shard: there, Scopes: wide})
				if err != nil || st.Scopes[0].Limits[1].Remaining < day-121 || st.Scopes[0].Limits[1].Remaining > day-119 || st.Scopes[0].InUse != 0 {
					t.Errorf("the store knows, of 121 tokens: %+v, %v", st, err)
				}
				for id, n := range w.store.settles {
					if n != 1 {
						t.Errorf("%s was settled %d times", id, n)
					}
				}
			})
		})
	}
}

// An instance that is asked by one that knows where the payer is now finds what it has granted where the payer was.
func TestInstanceThatIsAskedAfterAMoveFindsWhatItHasGranted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, 2, Options{})
		w.trips(down)
		id := uuid.New()
		w.check(id, wide, 100)
		q := Question{Shard: shard + 1, Earlier: []int{shard + 2, shard}, Subject: user, RequestID: id, Ended: true, Actual: limit.Usage(7, 0)}
		if a, err := w.Answer(t.Context(), q); err != nil || a.Held == nil || a.Held.Status != limit.Settled || a.Held.Reserved[limit.Tokens] != 100 {
			t.Errorf("%+v, %v", a, err)
		}
		if a, err := w.Answer(t.Context(), q); err != nil || a.Held != nil {
			t.Errorf("it was given up: %+v, %v", a, err)
		}
	})
}
