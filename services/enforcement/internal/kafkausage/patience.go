package kafkausage

import (
	"sync"
	"time"
)

// leastPatience is the shortest wait for Kafka: acknowledgements vary by less than that for reasons that are none.
const leastPatience = 50 * time.Millisecond

// patience tells how long an acknowledgement is worth waiting for before the spool is the quicker way. A fixed wait is either too long for the
// records that are under way when Kafka goes away, or too short for a Kafka that is slow but well. So it follows what acknowledgements take,
// as TCP's retransmission timer does (RFC 6298): their smoothed mean and four times their mean deviation.
type patience struct {
	most time.Duration // and as long as nothing is known

	mu         sync.Mutex
	known      bool
	mean, mdev time.Duration
}

// wait is from 50 ms to most.
func (p *patience) wait() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.known {
		return p.most
	}
	return min(max(p.mean+4*p.mdev, leastPatience), p.most)
}

// took notes how long an acknowledgement took, or was waited for in vain: a Kafka that has become slower is waited for longer.
func (p *patience) took(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.known {
		p.known, p.mean, p.mdev = true, d, d/2
		return
	}
	p.mdev += ((p.mean - d).Abs() - p.mdev) / 4
	p.mean += (d - p.mean) / 8
}
