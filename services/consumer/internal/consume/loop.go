package consume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/lifecycle"
)

// Loop moves messages from the source to the ledger. All fields but Timing are required.
type Loop struct {
	Source      Source
	Ledger      Ledger
	DeadLetters DeadLetters
	Limits      Limits
	Timing      Timing // DefaultTiming if zero
	Metrics     *Metrics
	Log         *slog.Logger
	Now         func() time.Time
}

// Run works until ctx ends. Then it fetches no more, stores and commits what it has, and returns nil; what it can't store within
// Timing.Drain stays uncommitted and comes again, to whoever reads the partition next, and is told as an error.
func (l *Loop) Run(ctx context.Context) error {
	if l.Timing == (Timing{}) {
		l.Timing = DefaultTiming
	}
	fetchCtx, stopFetching := context.WithCancel(ctx)
	messages := make(chan Message) // unbuffered: what is not yet in a batch stays in the source
	fetched := make(chan struct{})
	go func() { defer close(fetched); l.fetch(fetchCtx, messages) }()
	defer func() { stopFetching(); <-fetched }()

	b := newBatch()
	timer := time.NewTimer(0)
	timer.Stop()
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			stopFetching()
			<-fetched
			return l.drain(ctx, b)
		case m := <-messages:
			if b.count == 0 {
				timer.Reset(l.Limits.Wait)
			}
			b.add(m)
			l.Metrics.fetched.Inc()
			if !b.full(l.Limits) {
				continue
			}
		case <-timer.C:
		}
		timer.Stop()
		if err := l.flush(ctx, b); err != nil {
			continue // only because ctx ended: the batch is drained above
		}
		b = newBatch()
	}
}

// fetch passes messages on until ctx ends.
func (l *Loop) fetch(ctx context.Context, out chan<- Message) {
	wait := l.Timing.RetryMin
	for {
		m, err := l.Source.Fetch(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			l.Metrics.failure("fetch")
			l.Log.Warn("fetch failed; trying again", "err", err, "wait", wait.String())
			if !lifecycle.Sleep(ctx, wait) {
				return
			}
			wait = min(2*wait, l.Timing.RetryMax)
			continue
		}
		wait = l.Timing.RetryMin
		select {
		case out <- m:
		case <-ctx.Done():
			return
		}
	}
}

// drain stores and commits the last batch although ctx has ended.
func (l *Loop) drain(ctx context.Context, b *batch) error {
	if b.count == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.Timing.Drain)
	defer cancel()
	if err := l.flush(ctx, b); err != nil {
		return fmt.Errorf("%d messages were not stored and stay uncommitted: %w", b.count, err)
	}
	return nil
}

// flush stores, puts aside and commits a batch, trying for as long as ctx lasts. It fails only if ctx ended; it may then be called
// again with the same batch.
func (l *Loop) flush(ctx context.Context, b *batch) error {
	order(b.rows)
	start := l.Now()
	refused, err := l.insert(ctx, b.rows)
	if err != nil {
		return err
	}
	letters := slices.Concat(b.dead, refused)
	if len(letters) > 0 {
		err := l.retry(ctx, "dead_letter", func(ctx context.Context) error { return l.DeadLetters.Write(ctx, letters) })
		if err != nil {
			return err
		}
	}
	l.Metrics.stored(b, len(refused), letters, l.Now().Sub(start))
	for _, d := range letters {
		l.Log.Warn("message put aside", "reason", d.Reason, "err", d.Err, "topic", d.Topic, "partition", d.Partition, "offset", d.Offset)
	}
	l.commit(ctx, b.positions())
	return nil
}

// insert stores rows, but for those that the ledger refuses for what they say: they are found by halving.
func (l *Loop) insert(ctx context.Context, rows []Row) ([]DeadLetter, error) {
	if len(rows) == 0 {
		return nil, nil
	}
	err := l.retry(ctx, "insert", func(ctx context.Context) error { return l.Ledger.Store(ctx, rows) })
	switch {
	case err == nil:
		return nil, nil
	case !errors.Is(err, ErrRefused):
		return nil, err
	case len(rows) == 1:
		return []DeadLetter{{rows[0].Message, ReasonRefused, err}}, nil
	}
	half := len(rows) / 2
	left, err := l.insert(ctx, rows[:half])
	if err != nil {
		return nil, err
	}
	right, err := l.insert(ctx, rows[half:])
	return append(left, right...), err
}

// commit is tried once: after a rebalance it can't succeed, and what it leaves open comes again and counts once. A stop that comes
// just now does not undo the insert, so it does not keep the commit from happening either.
func (l *Loop) commit(ctx context.Context, at []Position) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.Timing.Commit)
	defer cancel()
	if err := l.Source.Commit(ctx, at); err != nil {
		l.Metrics.failure("commit")
		l.Log.Warn("offsets not committed; the messages may come again", "err", err)
		return
	}
	l.Metrics.committed(l.Now())
}

// retry calls do until it succeeds, is refused, or ctx ends.
func (l *Loop) retry(ctx context.Context, what string, do func(context.Context) error) error {
	wait := l.Timing.RetryMin
	for {
		attempt, cancel := context.WithTimeout(ctx, l.Timing.Attempt)
		err := do(attempt)
		cancel()
		if err == nil || errors.Is(err, ErrRefused) {
			return err
		}
		if ctx.Err() != nil {
			return errors.Join(ctx.Err(), err)
		}
		l.Metrics.failure(what)
		l.Log.Warn("a step failed; trying again, fetching nothing meanwhile", "step", what, "err", err, "wait", wait.String())
		if !lifecycle.Sleep(ctx, wait) {
			return errors.Join(ctx.Err(), err)
		}
		wait = min(2*wait, l.Timing.RetryMax)
	}
}
