package kafkausage

import (
	"testing"
	"time"
)

const ms = time.Millisecond

func TestPatienceFollowsWhatAcknowledgementsTake(t *testing.T) {
	p := &patience{most: 2 * time.Second}
	if got := p.wait(); got != 2*time.Second {
		t.Errorf("%s before anything is known", got)
	}
	for range 100 {
		p.took(4 * ms)
	}
	if got := p.wait(); got != leastPatience {
		t.Errorf("%s for a Kafka that takes 4 ms", got)
	}
	for i := range 100 {
		p.took(time.Duration(50+100*(i%2)) * ms)
	}
	if got := p.wait(); got < 200*ms || got > 500*ms {
		t.Errorf("%s for one that takes 50 or 150 ms", got)
	}
}

// A Kafka that has become slow for good must be waited for again some time: else its records would go by the spool for ever.
func TestPatienceGrowsUntilASlowKafkaIsInTime(t *testing.T) {
	p := &patience{most: 2 * time.Second}
	for range 100 {
		p.took(4 * ms)
	}
	const slow = 700 * ms
	missed := 0
	for ; p.wait() < slow; missed++ {
		if missed == 50 {
			t.Fatalf("still %s", p.wait())
		}
		p.took(p.wait())
	}
	for range 200 {
		p.took(slow)
		if p.wait() < slow {
			t.Fatalf("%s are not enough for what takes %s", p.wait(), slow)
		}
	}
	for range 100 {
		p.took(time.Minute)
	}
	if got := p.wait(); got != 2*time.Second {
		t.Errorf("%s is more than the most", got)
	}
}
