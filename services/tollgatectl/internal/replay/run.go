package replay

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/client"
	"github.com/tollgate-dev/tollgate/pkg/usage"
	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/trace"
)

// API is what a replay calls.
type API interface {
	CheckPatiently(ctx context.Context, r client.CheckRequest) (client.Decision, error)
	Record(ctx context.Context, r client.RecordRequest) (client.Receipt, error)
}

var _ API = (*client.Enforcement)(nil)

// Config says what to replay and how.
type Config struct {
	Requests []trace.Request
	Users    []int   // who sends each request
	Prefix   string  // of the user ids
	Model    string  // asked for by every request
	Speed    float64 // trace seconds per second; 0: as fast as it goes
	Workers  int     // checks, and as many records, at once
}

// queueLen bounds how many requests wait to be recorded. Beyond it, records do hold back the checks.
const queueLen = 1 << 16

// checkTimeout is when a check, repeats included, counts as failed.
const checkTimeout = 2 * time.Minute

type toRecord struct {
	req client.RecordRequest
	at  time.Time // of the check
}

// Run replays until the trace or ctx ends. What was allowed is recorded even then. progress is told how many requests are done
// with, refused or recorded, from many goroutines.
func Run(ctx context.Context, cfg Config, api API, progress func(n int)) Account {
	t := newTally(len(cfg.Requests))
	due := make(chan int)
	records := make(chan toRecord, queueLen)
	start := time.Now()

	var checkers, recorders sync.WaitGroup
	for range cfg.Workers {
		checkers.Go(func() {
			for i := range due {
				if !check(ctx, cfg, api, i, t, records) {
					progress(1)
				}
			}
		})
		recorders.Go(func() {
			for r := range records {
				record(context.WithoutCancel(ctx), api, r, t)
				progress(1)
			}
		})
	}
	interrupted := !dispatch(ctx, cfg, start, due, t)
	close(due)
	checkers.Wait()
	close(records)
	recorders.Wait()

	a := t.account()
	a.Elapsed, a.Interrupted = time.Since(start), interrupted
	if cfg.Speed > 0 {
		a.Target = scaled(cfg.Requests[len(cfg.Requests)-1].Offset, cfg.Speed)
	}
	return a
}

// dispatch hands each request to a worker at its time. It reports false if ctx ended first.
func dispatch(ctx context.Context, cfg Config, start time.Time, due chan<- int, t *tally) bool {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i, r := range cfg.Requests {
		if cfg.Speed > 0 {
			if wait := scaled(r.Offset, cfg.Speed) - time.Since(start); wait > 0 {
				timer.Reset(wait)
				select {
				case <-timer.C:
				case <-ctx.Done():
					return false
				}
			}
		}
		select {
		case due <- i:
		case <-ctx.Done():
			return false
		}
		if cfg.Speed > 0 {
			t.behind(time.Since(start) - scaled(r.Offset, cfg.Speed))
		}
	}
	return true
}

func scaled(d time.Duration, speed float64) time.Duration { return time.Duration(float64(d) / speed) }

// check asks for one request and queues it for its record if it is allowed; then it reports true.
func check(ctx context.Context, cfg Config, api API, i int, t *tally, records chan<- toRecord) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkTimeout) // once asked, the answer is waited for
	defer cancel()
	r, user := cfg.Requests[i], UserID(cfg.Prefix, cfg.Users[i])
	id := uuid.Must(uuid.NewV7())
	at := time.Now()
	d, err := api.CheckPatiently(ctx, client.CheckRequest{UserID: user, Model: cfg.Model, RequestID: id, InputTokens: &r.InputTokens, MaxOutputTokens: &r.OutputTokens})
	if err != nil {
		t.failed(err)
		return false
	}
	t.checked(time.Since(at), d.Allowed, d.Reason, d.Degraded)
	if !d.Allowed {
		return false
	}
	records <- toRecord{at: at, req: client.RecordRequest{UserID: user, RequestID: id, Model: d.Model,
		InputTokens: r.InputTokens, OutputTokens: r.OutputTokens, Outcome: string(usage.Completed)}}
	return true
}

func record(ctx context.Context, api API, r toRecord, t *tally) {
	sent := time.Now()
	r.req.LatencyMS = sent.Sub(r.at).Milliseconds()
	if _, err := api.Record(ctx, r.req); err != nil {
		t.failed(err)
		return
	}
	t.recorded(time.Since(sent), r.req.InputTokens, r.req.OutputTokens)
}
