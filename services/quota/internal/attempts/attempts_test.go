package attempts

import (
	"encoding/binary"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"
)

func TestAddressGetsItsBurstAndThenOneEach(t *testing.T) {
	now := time.Unix(1000, 0)
	l := New(3, time.Second, func() time.Time { return now })
	a, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	for i := range 3 {
		if l.Wait(a) != 0 || l.Failed(a) != 0 {
			t.Fatalf("attempt %d was slowed", i)
		}
	}
	for range 5 {
		if got := l.Failed(a); got != time.Second {
			t.Fatalf("waits %v", got)
		}
	}
	if l.Wait(other) != 0 {
		t.Error("another address waits, too")
	}
	for range 4 {
		now = now.Add(l.Wait(a))
		if l.Failed(a) != 0 {
			t.Error("waiting as told did not help")
		}
	}
	now = now.Add(time.Minute)
	for i := range 3 {
		if l.Failed(a) != 0 {
			t.Errorf("attempt %d after a long time was slowed", i)
		}
	}
}

func TestMemoryIsBoundedAndNetworksAreOne(t *testing.T) {
	now := time.Unix(1000, 0)
	l := New(1, time.Hour, func() time.Time { return now })
	for i := range uint32(3 * Remembered) {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], i)
		l.Failed(netip.AddrFrom4(b))
	}
	if n := l.seen.Len(); n != Remembered {
		t.Errorf("%d addresses are remembered", n)
	}
	l.Failed(netip.MustParseAddr("2001:db8::1"))
	if l.Wait(netip.MustParseAddr("2001:db8::ffff")) == 0 || l.Wait(netip.MustParseAddr("2001:db8:0:1::1")) != 0 {
		t.Error("an IPv6 network of 64 bits is one caller")
	}
	l.Failed(netip.MustParseAddr("198.51.100.7"))
	if l.Wait(netip.MustParseAddr("::ffff:198.51.100.7")) == 0 {
		t.Error("an address in IPv6 clothes is another one")
	}
}

func TestForwardedForIsBelievedFromProxiesOnly(t *testing.T) {
	trusted, err := ParseProxies([]string{"10.0.0.0/8", "127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		proxies           Proxies
		remote, xff, want string
	}{
		{nil, "10.0.0.1:1", "203.0.113.9", "10.0.0.1"},
		{trusted, "203.0.113.1:1", "198.51.100.1", "203.0.113.1"},
		{trusted, "10.0.0.1:1", "203.0.113.9", "203.0.113.9"},
		{trusted, "10.0.0.1:1", "6.6.6.6, 203.0.113.9, 10.2.3.4", "203.0.113.9"},
		{trusted, "127.0.0.1:1", "", "127.0.0.1"},
		{trusted, "127.0.0.1:1", "nonsense", "127.0.0.1"},
		{trusted, "127.0.0.1:1", "10.9.9.9", "10.9.9.9"},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr = c.remote
		if c.xff != "" {
			r.Header.Set("X-Forwarded-For", c.xff)
		}
		if got := c.proxies.Address(r); got.String() != c.want {
			t.Errorf("%s, %q: %s, want %s", c.remote, c.xff, got, c.want)
		}
	}
	if _, err := ParseProxies([]string{"10.0.0.0/8", "proxy.example"}); err == nil {
		t.Error("a name was taken for a network")
	}
}
