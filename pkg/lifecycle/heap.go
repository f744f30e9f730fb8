package lifecycle

import (
	"math"
	"runtime/metrics"
	"sync"
)

// heapFloor is what a heap may grow by, in bytes, before garbage is collected.
const heapFloor = 64 << 20

const defaultGOGC = 100

var (
	floorOnce sync.Once
	floor     []byte
)

// CollectLessOften keeps the garbage collector of a service that answers within milliseconds from running many times a second: of a small heap it
// collects every few megabytes, and each time takes a quarter of the processors. It does so by an allocation that is never touched, and hence takes
// no memory: the collector waits until as much is garbage. An operator who sets GOGC or GOMEMLIMIT has decided otherwise; then it does nothing.
func CollectLessOften() {
	set := []metrics.Sample{{Name: "/gc/gogc:percent"}, {Name: "/gc/gomemlimit:bytes"}}
	metrics.Read(set)
	if set[0].Value.Uint64() != defaultGOGC || set[1].Value.Uint64() != math.MaxInt64 {
		return
	}
	floorOnce.Do(func() { floor = make([]byte, heapFloor) })
}
