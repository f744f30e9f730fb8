package kafkasource

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// losses remembers which messages retention removed before the group had committed them, each once.
type losses struct {
	mu          sync.Mutex
	byPartition map[int]*loss
}

// loss is what one partition has lost: messages, the last of them before offset end.
type loss struct{ messages, end int64 }

// note takes where the group is and where the log begins; it gives what was not known before: messages from offset on. committed is -1 for none: a
// new group begins where the log does, and has lost nothing.
func (l *losses) note(partition int, committed, first int64) (from, messages int64) {
	if committed < 0 || committed >= first {
		return 0, 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byPartition == nil {
		l.byPartition = map[int]*loss{}
	}
	p := l.byPartition[partition]
	if p == nil {
		p = &loss{}
		l.byPartition[partition] = p
	}
	from = max(committed, p.end)
	messages = max(first-from, 0)
	p.messages, p.end = p.messages+messages, max(p.end, first)
	return from, messages
}

// all gives the partitions that have lost something, in order.
func (l *losses) all() (partitions []int, lost map[int]loss) {
	l.mu.Lock()
	defer l.mu.Unlock()
	lost = map[int]loss{}
	for p, of := range l.byPartition {
		partitions, lost[p] = append(partitions, p), *of
	}
	slices.Sort(partitions)
	return partitions, lost
}

// Lost is how many messages retention had removed before the group committed them, as far as Open or Lag has found since Open. Those that a member
// held in memory by then count, too, though it may store them yet.
func (s *Source) Lost() (messages int64) {
	_, lost := s.losses.all()
	for _, l := range lost {
		messages += l.messages
	}
	return messages
}

// Differences names each partition whose offsets and log do not fit: the group is beyond the end, or messages were lost. The latter are
// named as long as this process runs: they don't come back.
func (s *Source) Differences(ctx context.Context) (names []string, err error) {
	lag, err := s.Lag(ctx)
	if err != nil && !errors.Is(err, ErrBeyondEnd) {
		return nil, err
	}
	for p, n := range lag {
		if n < 0 {
			names = append(names, fmt.Sprintf("partition %d: committed %d messages beyond the end of the log", p, -n))
		}
	}
	slices.Sort(names)
	partitions, lost := s.losses.all()
	for _, p := range partitions {
		names = append(names, fmt.Sprintf("partition %d: %d messages below offset %d were lost to retention before they were consumed", p, lost[p].messages, lost[p].end))
	}
	return names, nil
}
