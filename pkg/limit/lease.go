package limit

import "time"

// leaseEnd is when a lease taken now ends, in ms. It is a whole second, rounded up, so that many leases are a few numbers in a scope's state.
func leaseEnd(now int64, lease time.Duration) int64 {
	if lease == 0 {
		lease = DefaultLease
	}
	return (now + lease.Milliseconds() + 999) / 1000 * 1000
}
