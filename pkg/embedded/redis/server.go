package redis

import (
	"context"
	"fmt"
	"net/url"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/tollgate-dev/tollgate/pkg/embedded/process"
)

// tick is how often the clock by which keys expire is moved along.
const tick = 50 * time.Millisecond

// Options say how to start a server.
type Options struct {
	Port     int    // 0: chosen by the system
	Password string // of the default user; empty: none is asked for
}

// Server is a running server.
type Server struct {
	Addr string // host:port, loopback

	mini     *miniredis.Miniredis
	password string
	stop     chan struct{}
	stopped  sync.WaitGroup
	close    sync.Once
}

// Start starts a server and returns when it listens. Error: process.ErrPortInUse.
func Start(_ context.Context, o Options) (*Server, error) {
	if err := process.CheckPort("Redis", o.Port); err != nil {
		return nil, err
	}
	m := miniredis.NewMiniRedis()
	if o.Password != "" {
		m.RequireAuth(o.Password)
	}
	if err := m.StartAddr(process.Addr(o.Port)); err != nil {
		return nil, fmt.Errorf("start the Redis server: %w", err)
	}
	s := &Server{Addr: m.Addr(), mini: m, password: o.Password, stop: make(chan struct{})}
	s.stopped.Go(s.expire)
	return s, nil
}

// expire moves the clock of the keys along: miniredis, made for tests, never does so by itself.
func (s *Server) expire() {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	last := time.Now()
	for {
		select {
		case <-s.stop:
			return
		case now := <-ticker.C:
			s.mini.FastForward(now.Sub(last))
			last = now
		}
	}
}

// URL is a redis:// connection string.
func (s *Server) URL() string {
	u := url.URL{Scheme: "redis", Host: s.Addr, Path: "/0"}
	if s.password != "" {
		u.User = url.UserPassword("", s.password)
	}
	return u.String()
}

// Miniredis gives tests miniredis's own means, such as a set clock.
func (s *Server) Miniredis() *miniredis.Miniredis { return s.mini }

// Close stops the server; its data is gone.
func (s *Server) Close(context.Context) error {
	s.close.Do(func() {
		close(s.stop)
		s.stopped.Wait()
		s.mini.Close()
	})
	return nil
}
