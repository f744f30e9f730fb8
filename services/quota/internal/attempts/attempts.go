// Package attempts slows down who tries tokens: it counts failed attempts by address, in bounded memory. CONTROL: the quota API's door.
//
// A good token is never slowed, whatever others behind the same address do: what is bounded are answers to bad ones, and how many of them may
// be looked up at once. Tokens have 130 random bits; what this protects is Postgres and the log, not the token.
package attempts

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// Remembered is how many addresses are kept apart. When more fail at once, the one that was quiet for longest is forgotten, and begins anew.
const Remembered = 10_000

// Limiter allows each address Burst failed attempts, and one more each Every.
type Limiter struct {
	mu    sync.Mutex
	seen  *simplelru.LRU[netip.Prefix, time.Time] // when all of an address's attempts are forgiven
	burst time.Duration
	every time.Duration
	now   func() time.Time
}

// New makes a limiter; now is the clock.
func New(burst int, every time.Duration, now func() time.Time) *Limiter {
	seen, err := simplelru.NewLRU[netip.Prefix, time.Time](Remembered, nil)
	if err != nil {
		panic(err) //nolint:forbidigo // only for a size below 1
	}
	return &Limiter{seen: seen, burst: time.Duration(burst) * every, every: every, now: now}
}

// Wait tells how long an address should wait before another attempt that may fail; 0: it need not.
func (l *Limiter) Wait(addr netip.Addr) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	free, _ := l.seen.Peek(group(addr))
	return l.wait(free, l.now())
}

// Failed counts an attempt that failed, and tells how long the address should have waited.
func (l *Limiter) Failed(addr netip.Addr) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, key := l.now(), group(addr)
	free, _ := l.seen.Get(key)
	wait := l.wait(free, now)
	if wait == 0 { // those that are refused cost nothing: waiting as told always helps
		if free.Before(now) {
			free = now
		}
		free = free.Add(l.every)
	}
	l.seen.Add(key, free)
	return wait
}

func (l *Limiter) wait(free, now time.Time) time.Duration {
	if free.Before(now) {
		return 0
	}
	return max(0, free.Sub(now)-l.burst+l.every)
}

// group takes the addresses that one caller has at will as one: an IPv6 network of 64 bits.
func group(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	bits := 32
	if a.Is6() {
		bits = 64
	}
	p, err := a.Prefix(bits)
	if err != nil { // the zero address: unknown callers are one
		return netip.Prefix{}
	}
	return p
}

// Proxies are the networks whose X-Forwarded-For is believed.
type Proxies []netip.Prefix

// ParseProxies reads addresses and networks.
func ParseProxies(list []string) (Proxies, error) {
	var ps Proxies
	for _, s := range list {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			a, e := netip.ParseAddr(s)
			if e != nil {
				return nil, fmt.Errorf("%q is neither an address nor a network such as 10.0.0.0/8", s)
			}
			p = netip.PrefixFrom(a, a.BitLen())
		}
		ps = append(ps, p.Masked())
	}
	return ps, nil
}

// Address is where a request comes from: who opened the connection, or, if that is a trusted proxy, the last address in X-Forwarded-For that is
// none. What stands before that anybody may have written. The zero address: unknown.
func (ps Proxies) Address(r *http.Request) netip.Addr {
	ap, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	at := ap.Addr().Unmap()
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for i := len(hops) - 1; i >= 0 && ps.trust(at); i-- {
		hop, err := netip.ParseAddr(strings.TrimSpace(hops[i]))
		if err != nil {
			break
		}
		at = hop.Unmap()
	}
	return at
}

func (ps Proxies) trust(a netip.Addr) bool {
	for _, p := range ps {
		if p.Contains(a) {
			return true
		}
	}
	return false
}
