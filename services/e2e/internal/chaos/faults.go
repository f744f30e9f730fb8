package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/lifecycle"
)

// fault is one thing that happens. It returns when the fault is over, not when all have recovered from it.
type fault struct {
	name string
	kill bool // ends a process with SIGKILL
	do   func(ctx context.Context, w *world, r *rand.Rand) error
}

// spoolSize is what a file of an instance may grow to while its disk is "full": less than a spool under load needs.
const spoolSize = 96 << 10

func faults() []fault {
	return []fault{
		{"kill enforcement-a", true, killMember("enforcement-a")},
		{"kill enforcement-b", true, killMember("enforcement-b")},
		{"kill consumer-a", true, killMember("consumer-a")},
		{"kill consumer-b", true, killMember("consumer-b")},
		{"kill ClickHouse", true, func(ctx context.Context, w *world, r *rand.Rand) error {
			return w.restartClickHouse(ctx, seconds(r, 0, 2))
		}},
		{"kill Kafka", true, func(ctx context.Context, w *world, r *rand.Rand) error { return w.restartKafka(ctx, seconds(r, 0, 2)) }},
		{"kill both consumers", true, func(ctx context.Context, w *world, r *rand.Rand) error {
			w.members["consumer-a"].kill()
			w.members["consumer-b"].kill()
			return nil
		}},
		{"stop Kafka", false, func(ctx context.Context, w *world, r *rand.Rand) error {
			return w.pause(ctx, w.kafka.Pid(), seconds(r, 2, 4))
		}},
		{"stop ClickHouse", false, func(ctx context.Context, w *world, r *rand.Rand) error {
			return w.pause(ctx, w.clickhouse.Pid(), seconds(r, 2, 4))
		}},
		{"stop Redis", false, func(ctx context.Context, w *world, r *rand.Rand) error {
			return w.pause(ctx, w.redis.Pid(), seconds(r, 2, 4))
		}},
		{"stop enforcement-a", false, stopMember("enforcement-a", 1, 3)},
		{"stop consumer-a", false, stopMember("consumer-a", 5, 12)}, // long enough to be thrown out of its group, and to come back as a zombie
		{"full disk while Kafka is away", false, fullDisk},
		{"kill enforcement-b while Redis is away", true, func(ctx context.Context, w *world, r *rand.Rand) error {
			time.AfterFunc(time.Second, w.members["enforcement-b"].kill)
			return w.pause(ctx, w.redis.Pid(), 3*time.Second)
		}},
		{"kill enforcement-a while Kafka is away", true, func(ctx context.Context, w *world, r *rand.Rand) error {
			time.AfterFunc(2*time.Second, w.members["enforcement-a"].kill) // what it has spooled is all that is left of its records
			return w.pause(ctx, w.kafka.Pid(), 4*time.Second)
		}},
	}
}

// Kinds is how many kinds of kill there are: as many kills as that, and each kind of fault comes once.
func Kinds() (n int) {
	for _, f := range faults() {
		if f.kill {
			n++
		}
	}
	return n
}

func killMember(name string) func(context.Context, *world, *rand.Rand) error {
	return func(_ context.Context, w *world, _ *rand.Rand) error {
		w.members[name].kill()
		return nil
	}
}

func stopMember(name string, from, to float64) func(context.Context, *world, *rand.Rand) error {
	return func(ctx context.Context, w *world, r *rand.Rand) error {
		return w.pause(ctx, w.members[name].current().Pid(), seconds(r, from, to))
	}
}

// fullDisk lets no file of enforcement grow while Kafka is away: records are refused until either is over, and none is lost.
func fullDisk(ctx context.Context, w *world, r *rand.Rand) error {
	names := []string{"enforcement-a", "enforcement-b"}
	for _, name := range names {
		if err := w.members[name].growTo(spoolSize); err != nil {
			return err
		}
	}
	defer func() {
		for _, name := range names {
			_ = w.members[name].growTo(^uint64(0)) // a process that was killed meanwhile has no bound any more
		}
	}()
	err := w.pause(ctx, w.kafka.Pid(), seconds(r, 5, 7))
	var refused float64
	for _, name := range names {
		n, mErr := w.members[name].metric(ctx, `tollgate_spool_refused_total{reason="write"}`)
		refused, err = refused+n, errors.Join(err, mErr)
	}
	if err == nil && refused == 0 {
		err = errors.New("no record was refused: the disk was not full")
	}
	w.tell("%22s %.0f writes refused by the full disk", "", refused)
	return err
}

// pause stops a process in its tracks for a while. A process that is gone meanwhile is none of its business.
func (w *world) pause(ctx context.Context, pid int, d time.Duration) error {
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return nil //nolint:nilerr // it was just killed by an earlier fault and is being started
	}
	lifecycle.Sleep(ctx, d)
	_ = syscall.Kill(pid, syscall.SIGCONT)
	return nil
}

func seconds(r *rand.Rand, from, to float64) time.Duration {
	return time.Duration((from + (to-from)*r.Float64()) * float64(time.Second))
}

// plan gives the faults in their order: each kind comes about equally often, kills times a kill in all.
func plan(r *rand.Rand, kills int) []fault {
	var all []fault
	for n := 0; n < kills; {
		kinds := faults()
		r.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
		for _, f := range kinds {
			if f.kill && n == kills {
				continue
			}
			if f.kill {
				n++
			}
			all = append(all, f)
		}
	}
	return all
}

// harm does the plan's faults, spread over the load: the next one begins at a random moment of its share of the records.
func (w *world) harm(ctx context.Context, r *rand.Rand, all []fault, l *load) error {
	for i, f := range all {
		at := int64((float64(i) + r.Float64()) / float64(len(all)) * float64(l.target))
		for l.answered.Load() < at && ctx.Err() == nil {
			lifecycle.Sleep(ctx, 5*time.Millisecond)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		w.tell("%6d records answered: %s", l.answered.Load(), f.name)
		if err := f.do(ctx, w, r); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return nil
}
