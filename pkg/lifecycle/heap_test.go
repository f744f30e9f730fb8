package lifecycle

import (
	"runtime"
	"runtime/debug"
	"sync"
	"testing"
)

var sink []byte

// While 48 MiB become garbage beside a small heap there is no collection, and the floor itself is not collected either.
func TestSmallHeapIsNotCollectedEveryFewMegabytes(t *testing.T) {
	t.Setenv("GOGC", "")
	t.Setenv("GOMEMLIMIT", "")
	defer debug.SetGCPercent(debug.SetGCPercent(100))
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
	floorOnce, floor = sync.Once{}, nil
	t.Setenv("GOGC", "50")
	CollectLessOften()
	if floor != nil {
		t.Error("the floor is there although GOGC is set")
	}
}
