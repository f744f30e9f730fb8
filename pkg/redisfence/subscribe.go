package redisfence

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"
)

// A subscription pings this often. One on which nothing arrives for silence, not even a pong, is dead and is replaced.
const (
	pingEvery  = time.Second
	silence    = 3 * time.Second
	backoffMin = 50 * time.Millisecond
	backoffMax = 2 * time.Second
)

// Subscribe calls onChange for each change announced on Channel, until ctx ends; then it returns nil. It calls onReconnect each time a
// subscription has been confirmed by Redis, the first one included: messages may have been lost before that moment, so the caller
// drops everything it has cached. Both are called from one goroutine, one after the other, and must return soon.
//
// A connection that breaks is replaced at once, one that silently dies within four seconds; Redis being away is not an error. A message
// that can't be read counts as a lost one: onReconnect is called.
func Subscribe(ctx context.Context, client redis.UniversalClient, onChange func(Change), onReconnect func()) error {
	wait := backoffMin
	for ctx.Err() == nil {
		if receive(ctx, client, onChange, onReconnect) {
			wait = backoffMin
		}
		timer := time.NewTimer(wait/2 + rand.N(wait/2+1)) //nolint:gosec // jitter needs no secrecy
		select {
		case <-ctx.Done():
			timer.Stop()
		case <-timer.C:
		}
		wait = min(2*wait, backoffMax)
	}
	return nil
}

// receive serves one connection until it fails, and tells whether it was ever confirmed. go-redis would reconnect by itself below one PubSub, but its answer to a read timeout is
// to go on reading the same connection, in which half a message may already be gone. Here every failure ends the PubSub.
func receive(ctx context.Context, client redis.UniversalClient, onChange func(Change), onReconnect func()) (confirmed bool) {
	ps := client.Subscribe(ctx, Channel)
	ctx, cancel := context.WithCancel(ctx)
	pinger := make(chan struct{})
	go func() {
		defer close(pinger)
		defer ps.Close() // unblocks the read below
		tick := time.NewTicker(pingEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				if ps.Ping(ctx) != nil {
					return
				}
			}
		}
	}()
	defer func() { cancel(); <-pinger }()
	for {
		msg, err := ps.ReceiveTimeout(ctx, silence)
		if err != nil {
			return confirmed // what was wrong matters to nobody: the cure is the same
		}
		switch m := msg.(type) {
		case *redis.Subscription:
			if m.Kind == "subscribe" {
				confirmed = true
				onReconnect()
			}
		case *redis.Message:
			var c Change
			if json.Unmarshal([]byte(m.Payload), &c) != nil || c.Name == "" {
				onReconnect()
				continue
			}
			onChange(c)
		}
	}
}
