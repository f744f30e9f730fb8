package proxy

import (
	"context"
	"sync"
)

// pending counts what the stop waits for. Unlike a sync.WaitGroup it may be waited for while new work begins: a request that is broken off at the stop
// is settled after that.
type pending struct {
	mu   sync.Mutex
	n    int
	none chan struct{} // closed when n is 0 again
}

func (p *pending) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.n++; p.n == 1 {
		p.none = make(chan struct{})
	}
}

func (p *pending) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.n--; p.n == 0 {
		close(p.none)
	}
}

// Go runs f in the background.
func (p *pending) Go(f func()) {
	p.begin()
	go func() {
		defer p.end()
		f()
	}()
}

// Wait returns when nothing is pending, or when ctx ends.
func (p *pending) Wait(ctx context.Context) error {
	p.mu.Lock()
	n, none := p.n, p.none
	p.mu.Unlock()
	if n == 0 {
		return nil
	}
	select {
	case <-none:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
