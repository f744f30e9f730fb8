package boltspool

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tollgate-dev/tollgate/pkg/testkit/crash"
)

func open(t testing.TB, dir string, o Options) *Spool {
	t.Helper()
	s, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func add(t testing.TB, s *Spool, events ...string) {
	t.Helper()
	for _, e := range events {
		if err := s.Append(context.Background(), []byte(e), ""); err != nil {
			t.Fatal(err)
		}
	}
}

func queue(t testing.TB, s *Spool) (seqs []uint64, events []string) {
	t.Helper()
	seqs, bodies, err := s.Oldest(1<<30, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range bodies {
		events = append(events, string(b))
	}
	return seqs, events
}

func TestEventsComeOutInTheirOrderAlsoAfterARestart(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, Options{})
	add(t, s, "a", "b", "c")
	seqs, _ := queue(t, s)
	if err := s.Settle(t.Context(), seqs[:1], nil); err != nil {
		t.Fatal(err)
	}
	add(t, s, "d")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir, Options{})
	add(t, s, "e")
	if _, got := queue(t, s); !slices.Equal(got, []string{"b", "c", "d", "e"}) || s.Len() != 4 {
		t.Errorf("%v, %d", got, s.Len())
	}
	if seqs, events, err := s.Oldest(2, 100); err != nil || len(seqs) != 2 || string(events[1]) != "c" {
		t.Error(events, err)
	}
	if seqs, _, err := s.Oldest(9, 0); err != nil || len(seqs) != 1 {
		t.Errorf("a large event would never come out: %d, %v", len(seqs), err)
	}
}

func TestConcurrentAppendsShareOneCommit(t *testing.T) {
	s := open(t, t.TempDir(), Options{})
	tx, err := s.db.Begin(true) // the writer waits meanwhile
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 300 {
		wg.Go(func() { add(t, s, fmt.Sprint(i)) })
	}
	for deadline := time.Now().Add(10 * time.Second); s.Len() < 300 || len(s.ops) < 100; <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the appends don't wait")
		}
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if n := testutil.ToFloat64(s.m.commits); n > 20 {
		t.Errorf("%v commits for 300 events of 300 callers", n)
	}
	if _, got := queue(t, s); len(got) != 300 {
		t.Errorf("%d events", len(got))
	}
}

func TestFullSpoolRefusesAndLosesNothing(t *testing.T) {
	s := open(t, t.TempDir(), Options{MaxBytes: 3 * charge(100), Registry: prometheus.NewRegistry()})
	e := strings.Repeat("x", 100)
	add(t, s, e, e, e)
	for _, refusal := range []string{"", "bad"} {
		if err := s.Append(t.Context(), []byte(e), refusal); !errors.Is(err, ErrFull) {
			t.Error(err)
		}
	}
	seqs, got := queue(t, s)
	if len(got) != 3 || s.Len() != 3 || testutil.ToFloat64(s.m.refused.WithLabelValues(refusedFull)) != 2 {
		t.Errorf("%d events, Len %d", len(got), s.Len())
	}
	if err := s.Settle(t.Context(), nil, map[uint64]string{seqs[0]: "bad"}); err != nil { // still takes up room
		t.Fatal(err)
	}
	if err := s.Append(t.Context(), []byte(e), ""); !errors.Is(err, ErrFull) {
		t.Error(err)
	}
	if err := s.Settle(t.Context(), seqs[1:2], nil); err != nil {
		t.Fatal(err)
	}
	add(t, s, e)
}

// A disk without room, by a limit on the size of a file in a process of its own.
func TestFullDiskRefusesAndGoesOnWhenThereIsRoom(t *testing.T) {
	type outcome struct {
		Dir                    string
		Kept, Settled, Again   int
		Refused, TwiceInASnap  bool
		Settling, OtherFailure string
	}
	dir := t.TempDir()
	v, o := crash.Start(t, func() (o outcome) {
		o.Dir = dir
		if d := os.Getenv("TOLLGATE_TEST_FULL_DISK"); d != "" { // a small file system, to try it by hand
			o.Dir = filepath.Join(d, "spool")
		} else {
			signal.Ignore(syscall.SIGXFSZ)
			if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 3 << 20, Max: 3 << 20}); err != nil {
				o.OtherFailure = err.Error()
				return o
			}
		}
		now := time.Now()
		s, err := Open(o.Dir, Options{Now: func() time.Time { return now }})
		if err != nil {
			o.OtherFailure = err.Error()
			return o
		}
		e := bytes.Repeat([]byte("x"), 900)
		for !o.Refused && o.Kept < 100_000 {
			err := s.Append(context.Background(), append([]byte(fmt.Sprintf("%06d", o.Kept)), e...), "")
			switch {
			case err == nil:
				o.Kept++
			case errors.Is(err, ErrFull):
				o.Refused = true
			default:
				o.OtherFailure = err.Error()
				return o
			}
		}
		o.TwiceInASnap = errors.Is(s.Append(context.Background(), e, ""), ErrFull)
		for range 3 { // Kafka is back
			seqs, _, err := s.Oldest(300, 1<<20)
			if err == nil {
				err = s.Settle(context.Background(), seqs, nil)
			}
			if err != nil {
				o.Settling = err.Error()
				return o
			}
			o.Settled += len(seqs)
		}
		now = now.Add(restAfter)
		for ; o.Again < 200; o.Again++ {
			if err := s.Append(context.Background(), append([]byte(fmt.Sprintf("%06d", o.Kept+o.Again)), e...), ""); err != nil {
				o.OtherFailure = err.Error()
				return o
			}
		}
		return o
	})
	v.Kill()
	if !o.Refused || !o.TwiceInASnap || o.Settled != 900 || o.Again != 200 || o.OtherFailure != "" || o.Settling != "" {
		t.Fatalf("%+v", o)
	}
	_, got := queue(t, open(t, o.Dir, Options{}))
	if len(got) != o.Kept-o.Settled+o.Again {
		t.Fatalf("%d events after the restart, %+v", len(got), o)
	}
	for i, e := range got {
		if want := fmt.Sprintf("%06d", o.Settled+i); e[:6] != want {
			t.Fatalf("event %d is %s, want %s", i, e[:6], want)
		}
	}
}

// Killed while 16 callers append and one takes out, three times over: what was answered is there or was taken out, in each caller's order.
func TestKillLosesNothingThatWasAcknowledged(t *testing.T) {
	const dirEnv, roundEnv = "TOLLGATE_TEST_SPOOL_DIR", "TOLLGATE_TEST_SPOOL_ROUND"
	dir := os.Getenv(dirEnv) // of the parent, in a victim
	if dir == "" {
		dir = t.TempDir()
		t.Setenv(dirEnv, dir)
	}
	acks := filepath.Join(dir, "acks")
	for round := range 3 {
		if os.Getenv(roundEnv) == "" || round > 0 {
			t.Setenv(roundEnv, fmt.Sprint(round))
		}
		v, _ := crash.Start(t, func() int {
			s, err := Open(dir, Options{})
			if err != nil {
				panic(err)
			}
			f, err := os.OpenFile(acks, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
			if err != nil {
				panic(err)
			}
			pad := strings.Repeat("x", 600)
			for w := range 16 {
				go func() {
					for i := 0; ; i++ {
						id := fmt.Sprintf("%s.%02d.%06d", os.Getenv(roundEnv), w, i)
						if s.Append(context.Background(), []byte(id+pad), "") != nil {
							return
						}
						fmt.Fprintln(f, "in", id)
					}
				}()
			}
			go func() {
				for {
					seqs, events, err := s.Oldest(takenAtOnce, 1<<20)
					if err != nil {
						return
					}
					for _, e := range events { // Kafka has it
						fmt.Fprintln(f, "out", string(e[:11]))
					}
					if s.Settle(context.Background(), seqs, nil) != nil {
						return
					}
				}
			}()
			return 0
		})
		for deadline := time.Now().Add(20 * time.Second); ; <-time.After(5 * time.Millisecond) {
			if info, err := os.Stat(acks); err == nil && info.Size() > int64(round+1)*40_000 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatal("the victim is slow")
			}
		}
		v.Kill()
	}
	_, got := queue(t, open(t, dir, Options{}))
	here, last := map[string]bool{}, map[string]string{}
	for _, e := range got {
		id := e[:11]
		if here[id] || id <= last[id[:4]] {
			t.Fatalf("%s comes after %s", id, last[id[:4]])
		}
		here[id], last[id[:4]] = true, id
	}
	in, out := map[string]bool{}, map[string]int{}
	f, err := os.Open(acks)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if kind, id, _ := strings.Cut(lines.Text(), " "); kind == "in" {
			in[id] = true
		} else {
			out[id]++
		}
	}
	for id := range in {
		if !here[id] && out[id] == 0 {
			t.Errorf("%s was acknowledged and is lost", id)
		}
	}
	again := 0
	for id, n := range out {
		again += n - 1
		if here[id] {
			again++
		}
	}
	if again > 3*takenAtOnce {
		t.Errorf("%d events were taken out in vain", again)
	}
	t.Logf("%d acknowledged, %d taken out, %d left, %d to be sent once more", len(in), len(out), len(got), again)
}

const takenAtOnce = 20

func TestTornCommitGoesBackToTheOneBefore(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, Options{})
	add(t, s, "a", "b")
	size := s.db.Info().PageSize
	if err := s.Append(t.Context(), []byte("not answered yet"), ""); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, File)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const txid = 64 // its place in a meta page
	newest := 0
	if binary.NativeEndian.Uint64(b[size+txid:]) > binary.NativeEndian.Uint64(b[txid:]) {
		newest = size
	}
	copy(b[newest+40:newest+60], "torn torn torn torn ")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir, Options{})
	add(t, s, "c")
	if _, got := queue(t, s); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Error(got)
	}
}

func TestQuarantineIsTriedOnceMoreAfterARestart(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, Options{})
	add(t, s, `{"n":1}`, `{"n":2}`)
	seqs, _ := queue(t, s)
	if err := errors.Join(s.Settle(t.Context(), nil, map[uint64]string{seqs[0]: "too large"}), s.Append(t.Context(), []byte(`{"n":"<3>"}`), "invalid")); err != nil {
		t.Fatal(err)
	}
	if _, got := queue(t, s); len(got) != 1 || s.Len() != 1 || testutil.ToFloat64(s.m.quarantined) != 2 {
		t.Errorf("%v, Len %d", got, s.Len())
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir, Options{})
	if _, got := queue(t, s); !slices.Equal(got, []string{`{"n":2}`, `{"n":1}`, `{"n":"<3>"}`}) || s.Len() != 3 {
		t.Error(got)
	}
}

func TestOneProcessADirectory(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, Options{})
	if _, err := Open(dir, Options{}); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), dir) {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Append(t.Context(), []byte("x"), ""); !errors.Is(err, ErrClosed) || s.Len() != 0 {
		t.Error(err, s.Len())
	}
	open(t, dir, Options{})
}

func TestPlaceThatCannotBeWrittenSaysSo(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(filepath.Join(file, "spool"), Options{}); err == nil || !strings.Contains(err.Error(), file) {
		t.Error(err)
	}
	ro := t.TempDir()
	if err := os.Chmod(ro, 0o500); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() != 0 {
		if _, err := Open(ro, Options{}); !errors.Is(err, os.ErrPermission) {
			t.Error(err)
		}
	}
	broken := t.TempDir()
	if err := os.WriteFile(filepath.Join(broken, File), bytes.Repeat([]byte("not a spool "), 2000), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(broken, Options{}); err == nil || !strings.Contains(err.Error(), broken) {
		t.Error(err)
	}
}

func TestFileIsBoundedAsTheDocumentationSays(t *testing.T) {
	dir := t.TempDir()
	const most = 8 << 20
	s := open(t, dir, Options{MaxBytes: most})
	s.db.NoSync = true
	var full, total int
	for range 6 {
		var wg sync.WaitGroup
		for range 64 {
			wg.Go(func() {
				e := bytes.Repeat([]byte("x"), 1100)
				for s.Append(context.Background(), e, "") == nil {
				}
			})
		}
		wg.Wait()
		full = s.Len()
		for range 3 {
			seqs, _, err := s.Oldest(full/4, most)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Settle(t.Context(), seqs, nil); err != nil {
				t.Fatal(err)
			}
			total += len(seqs)
		}
	}
	info, err := os.Stat(filepath.Join(dir, File))
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > most*3/2+16<<20 {
		t.Errorf("the file has %d bytes for at most %d", info.Size(), most)
	}
	t.Logf("%d events went through; %d fill it; file %.2f of MaxBytes", total, full, float64(info.Size())/most)
}

func TestMetricsTellOfTheSpool(t *testing.T) {
	reg, now := prometheus.NewRegistry(), time.UnixMilli(1_000_000)
	s := open(t, t.TempDir(), Options{Registry: reg, Now: func() time.Time { return now }})
	add(t, s, "a", "b", "c")
	seqs, _ := queue(t, s)
	if err := s.Settle(t.Context(), seqs[:1], map[uint64]string{seqs[1]: "bad"}); err != nil {
		t.Fatal(err)
	}
	now = now.Add(5 * time.Second)
	want := map[string]float64{"events": 1, "bytes": float64(2 * charge(1)), "quarantine_events": 1, "oldest_seconds": 5, "spooled_total": 3,
		"drained_total": 1, "quarantined_total": 1, "refused_total": 0, "commits_total": 4}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if got, name := m.GetGauge().GetValue()+m.GetCounter().GetValue(), strings.TrimPrefix(f.GetName(), "tollgate_spool_"); got != want[name] {
				t.Errorf("%s is %v, want %v", name, got, want[name])
			}
		}
		delete(want, strings.TrimPrefix(f.GetName(), "tollgate_spool_"))
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
}

// BenchmarkAppend measures events of 900 bytes from several callers at once; its yardstick appends them to a plain file and fsyncs each.
func BenchmarkAppend(b *testing.B) {
	e := bytes.Repeat([]byte("x"), 900)
	b.Run("yardstick=file+fsync", func(b *testing.B) {
		f, err := os.Create(filepath.Join(b.TempDir(), "f"))
		if err != nil {
			b.Fatal(err)
		}
		defer f.Close()
		for b.Loop() {
			if _, err := f.Write(e); err != nil {
				b.Fatal(err)
			}
			if err := f.Sync(); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
	})
	for _, callers := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			s := open(b, b.TempDir(), Options{})
			b.SetParallelism(max(1, callers/2)) // on two cores
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					add(b, s, string(e))
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
			b.ReportMetric(testutil.ToFloat64(s.m.commits)/float64(b.N), "commits/event")
		})
	}
}
