package e2e

import "testing"

// Case B81 to its end: 200 calls of 10 tokens finish while the broker is stopped in its tracks; what timed out is delivered later and what
// was spooled is sent, and the ledger counts each call once.
func TestB81CallsThatFinishWhileKafkaIsAwayAreCountedOnce(t *testing.T) {
	p, e, q := services(t)
	user := newUser(t, q, limits{})
	p.kafka.Pause(t)
	defer p.kafka.Resume(t)
	for range 200 {
		record(t, e, user, allowed(t, e, user, 10).RequestID, 10, 0)
	}
	p.kafka.Resume(t)
	for range 5 {
		record(t, e, user, allowed(t, e, user, 10).RequestID, 10, 0)
	}
	p.awaitLedger(t, user, counted{requests: 205, input: 2050})
}
