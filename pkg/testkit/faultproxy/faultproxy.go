package faultproxy

import (
	"net"
	"sync"
	"testing"
	"time"
)

type mode int

const (
	pass mode = iota
	refuse
	swallow
)

// relistenFor is how long Pass tries to get the port back.
const relistenFor = 5 * time.Second

// Proxy forwards connections. Its methods may be called from any goroutine.
type Proxy struct {
	Addr string // host:port, loopback; the same for the proxy's whole life

	t  testing.TB
	wg sync.WaitGroup

	mu       sync.Mutex
	target   string
	mode     mode
	delay    time.Duration
	listener net.Listener
	pairs    map[*pair]bool
	closed   bool
}

// pair is a client's connection and the server's.
type pair struct {
	client, server net.Conn // server is nil in a black hole

	mu   sync.Mutex
	dead bool // it has lost bytes
}

func (p *pair) close() {
	_ = p.client.Close()
	if p.server != nil {
		_ = p.server.Close()
	}
}

// Start starts a proxy that passes everything to target and ends with the test.
func Start(t testing.TB, target string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("faultproxy: %v", err)
	}
	p := &Proxy{Addr: l.Addr().String(), t: t, target: target, listener: l, pairs: map[*pair]bool{}}
	p.wg.Go(func() { p.accept(l) })
	t.Cleanup(func() {
		p.mu.Lock()
		p.closed = true
		if p.listener != nil {
			_ = p.listener.Close()
		}
		p.cut()
		p.mu.Unlock()
		p.wg.Wait()
	})
	return p
}

// Pass lets everything through again, without delay.
func (p *Proxy) Pass() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mode, p.delay = pass, 0
	if p.listener != nil {
		return
	}
	for deadline := time.Now().Add(relistenFor); ; time.Sleep(10 * time.Millisecond) {
		l, err := net.Listen("tcp", p.Addr)
		if err == nil {
			p.listener = l
			p.wg.Go(func() { p.accept(l) })
			return
		}
		if time.Now().After(deadline) {
			p.t.Errorf("faultproxy: %v", err)
			return
		}
	}
}

// Refuse cuts all connections and refuses new ones.
func (p *Proxy) Refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mode = refuse
	if p.listener != nil {
		_ = p.listener.Close()
		p.listener = nil
	}
	p.cut()
}

// Swallow takes connections and bytes and never answers.
func (p *Proxy) Swallow() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mode = swallow
}

// Delay holds back, from now on, what the server answers.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// Forward cuts all connections and sends new ones to another server.
func (p *Proxy) Forward(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
	p.cut()
}

// cut ends all connections. p.mu is held.
func (p *Proxy) cut() {
	for c := range p.pairs {
		c.close()
	}
	clear(p.pairs)
}

func (p *Proxy) accept(l net.Listener) {
	for {
		client, err := l.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.serve(client) })
	}
}

func (p *Proxy) serve(client net.Conn) {
	p.mu.Lock()
	target, dead := p.target, p.mode == swallow
	p.mu.Unlock()
	c := &pair{client: client, dead: dead}
	if !dead {
		server, err := net.DialTimeout("tcp", target, time.Second)
		if err != nil {
			_ = client.Close()
			return
		}
		c.server = server
	}
	p.mu.Lock()
	if p.closed || p.mode == refuse || p.target != target {
		p.mu.Unlock()
		c.close()
		return
	}
	p.pairs[c] = true
	p.mu.Unlock()
	defer func() {
		c.close()
		p.mu.Lock()
		delete(p.pairs, c)
		p.mu.Unlock()
	}()
	if c.server == nil {
		p.copy(c, client, nil, false)
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() { defer c.close(); p.copy(c, client, c.server, false) })
	wg.Go(func() { defer c.close(); p.copy(c, c.server, client, true) })
	wg.Wait()
}

// chunk is bytes and when to send them.
type chunk struct {
	b  []byte
	at time.Time
}

// copy forwards bytes until its reader or writer ends.
func (p *Proxy) copy(c *pair, from, to net.Conn, delayed bool) {
	out := make(chan chunk, 1024)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(out)
	wg.Go(func() {
		for ch := range out {
			time.Sleep(time.Until(ch.at))
			if _, err := to.Write(ch.b); err != nil {
				c.close() // the reader ends, too; what is left is dropped
			}
		}
	})
	for {
		buf := make([]byte, 32<<10)
		n, err := from.Read(buf)
		if n > 0 {
			p.mu.Lock()
			lost, wait := p.mode == swallow, p.delay
			p.mu.Unlock()
			if !delayed {
				wait = 0
			}
			if !c.loses(lost) {
				out <- chunk{buf[:n], time.Now().Add(wait)}
			}
		}
		if err != nil {
			return
		}
	}
}

// loses says whether bytes are lost, and has the connection lose all that follow.
func (p *pair) loses(now bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dead = p.dead || now
	return p.dead
}
