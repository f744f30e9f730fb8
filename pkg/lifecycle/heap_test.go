package lifecycle

import (
	"math"
	"runtime"
	"runtime/debug"
	"sync"
	"testing"
)

var sink []byte

// While 48 MiB become garbage beside a small heap there is no collection, and the floor itself is not collected either.
func TestSmallHeapIsNotCollectedEveryFewMegabytes(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(math.MaxInt64))
	CollectLessOften()
	for range 2 {
		runtime.GC()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range 48 << 10 {
			sink = make([]byte, 1<<10)
		}
		runtime.ReadMemStats(&after)
		if n := after.NumGC - before.NumGC; n != 0 {
			t.Errorf("%d collections", n)
		}
	}
}

func TestOperatorsOwnSettingOfTheCollectorStands(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(math.MaxInt64))
	for name, set := range map[string]func() func(){
		"GOGC":       func() func() { was := debug.SetGCPercent(50); return func() { debug.SetGCPercent(was) } },
		"GOMEMLIMIT": func() func() { was := debug.SetMemoryLimit(1 << 30); return func() { debug.SetMemoryLimit(was) } },
	} {
		floorOnce, floor = sync.Once{}, nil
		restore := set()
		CollectLessOften()
		restore()
		if floor != nil {
			t.Errorf("the floor is there although %s is set", name)
		}
	}
	CollectLessOften()
	if floor == nil {
		t.Error("the floor is missing")
	}
}
