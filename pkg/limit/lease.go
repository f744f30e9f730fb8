package limit

import "time"

// DueEvery is how fine Due is: what becomes due is offered at the next whole multiple of it.
const DueEvery = 5 * time.Second

// leaseEnd is when a lease taken now ends, in ms. It is a whole second, rounded up, so that many leases are a few numbers in a scope's state.
func leaseEnd(now int64, lease time.Duration) int64 {
	if lease == 0 {
		lease = DefaultLease
	}
	return ceilTo(now+lease.Milliseconds(), 1000)
}

// dueTime is when Due offers what becomes due at t, in ms.
func dueTime(t int64) int64 { return ceilTo(t, DueEvery.Milliseconds()) }

func ceilTo(n, unit int64) int64 { return (n + unit - 1) / unit * unit }
