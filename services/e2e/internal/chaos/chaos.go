package chaos

import (
	"context"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tollgate-dev/tollgate/pkg/clickhouseledger"
	"github.com/tollgate-dev/tollgate/pkg/embedded/clickhouse"
)

// Options says how much happens.
type Options struct {
	Records int       // to be answered
	Kills   int       // processes ended with SIGKILL, or pairs of them
	Seed    uint64    // of the load and of the faults: the same seed plans the same, though the moments differ
	Out     io.Writer // what happens, line by line
	Log     io.Writer // what the processes print
}

// Run crashes and checks. A nil error: nothing was lost and nothing counted twice.
func Run(ctx context.Context, o Options) (err error) {
	w, err := startWorld(ctx, o.Out, o.Log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	db, err := clickhouseledger.OpenSQL(w.clickhouse.DSN(clickhouse.Database))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()

	r := rand.New(rand.NewPCG(o.Seed, 0)) //nolint:gosec // a repeatable plan
	all := plan(r, o.Kills)
	l := newLoad([]string{w.members["enforcement-a"].url, w.members["enforcement-b"].url}, o.Records)
	w.tell("%d records, %d faults, %d of them kills; seed %d", o.Records, len(all), o.Kills, o.Seed)
	began := time.Now()
	looks := 0
	g, gctx := errgroup.WithContext(ctx)
	watchCtx, endWatch := context.WithCancel(gctx)
	defer endWatch()
	g.Go(func() (err error) { looks, err = watch(watchCtx, db); return err })
	g.Go(func() error {
		defer endWatch()
		both, bctx := errgroup.WithContext(gctx)
		harmed := make(chan struct{})
		both.Go(func() error { return l.run(bctx, o.Seed, harmed) })
		both.Go(func() error { defer close(harmed); return w.harm(bctx, r, all, l) })
		if err := both.Wait(); err != nil {
			return err
		}
		w.summary(l, time.Since(began))
		return verify(gctx, db, w.kafka.Brokers(), l)
	})
	if err := g.Wait(); err != nil {
		return err
	}
	if looks == 0 {
		return errors.New("the views were never looked at")
	}
	w.tell("0 lost, 0 counted twice: each of the %d answered records is in the ledger once, every view agrees with the events, log and ledger agree.", len(l.uses))
	w.tell("The views were looked at %d times meanwhile and never lied.", looks)
	return nil
}

// summary tells what the load has seen.
func (w *world) summary(l *load, took time.Duration) {
	n := l.answered.Load()
	w.tell("%d records answered in %s, %.0f/s; %d calls sent again, %d checks decided without Redis", n, took.Round(time.Second),
		float64(n)/took.Seconds(), l.retries.Load(), l.degraded.Load())
	for _, name := range slices.Sorted(maps.Keys(w.members)) {
		if n := w.members[name].exits.Load(); n > 0 {
			w.tell("%s ended %d times by itself", name, n)
		}
	}
}
