package proxy

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Who waits while others begin and end sees all that had begun before, and gives up with its context.
func TestStopWaitsForWorkThatBeginsMeanwhile(t *testing.T) {
	var p pending
	var done atomic.Int64
	p.begin() // a request that is being broken off
	release := make(chan struct{})
	go func() {
		<-release
		p.Go(func() { time.Sleep(20 * time.Millisecond); done.Add(1) }) // its settlement
		p.end()
	}()
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := p.Wait(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("waiting for an open request: %v", err)
	}
	close(release)
	if err := p.Wait(t.Context()); err != nil || done.Load() != 1 {
		t.Errorf("%v, %d settlements", err, done.Load())
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 500 {
				p.Go(func() { done.Add(1) })
				_ = p.Wait(t.Context())
			}
		})
	}
	all.Wait()
	if err := p.Wait(t.Context()); err != nil || done.Load() != 4001 {
		t.Errorf("%v, %d done", err, done.Load())
	}
}
