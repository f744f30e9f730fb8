package faultproxy

import (
	"bufio"
	"io"
	"net"
	"testing"
	"time"
)

// echo is a server that answers what it is sent, after its name.
func echo(t *testing.T, name string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for in := bufio.NewReader(c); ; {
					line, err := in.ReadString('\n')
					if err != nil {
						return
					}
					_, _ = io.WriteString(c, name+" "+line)
				}
			}()
		}
	}()
	return l.Addr().String()
}

type conn struct {
	t *testing.T
	net.Conn
}

func dial(t *testing.T, addr string) conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return conn{t, c}
}

// say gives the answer, or "" if there is none in time.
func (c conn) say(line string, within time.Duration) string {
	c.t.Helper()
	_ = c.SetDeadline(time.Now().Add(within))
	if _, err := io.WriteString(c, line+"\n"); err != nil {
		return ""
	}
	answer, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return ""
	}
	return answer[:len(answer)-1]
}

const (
	long  = 5 * time.Second
	short = 100 * time.Millisecond
)

func TestProxyFailsAsToldAndPassesAgain(t *testing.T) {
	p := Start(t, echo(t, "a"))
	c := dial(t, p.Addr)
	if got := c.say("x", long); got != "a x" {
		t.Fatalf("%q", got)
	}
	p.Refuse()
	if got := c.say("x", long); got != "" {
		t.Errorf("a cut connection answers %q", got)
	}
	if _, err := net.Dial("tcp", p.Addr); err == nil {
		t.Error("it still listens")
	}
	p.Pass()
	if got := dial(t, p.Addr).say("x", long); got != "a x" {
		t.Errorf("%q", got)
	}
}

func TestConnectionThatLostBytesStaysDead(t *testing.T) {
	p := Start(t, echo(t, "a"))
	used, idle := dial(t, p.Addr), dial(t, p.Addr)
	used.say("x", long)
	idle.say("x", long)
	p.Swallow()
	made := dial(t, p.Addr)
	if a, b := used.say("x", short), made.say("x", short); a != "" || b != "" {
		t.Errorf("a black hole answers %q, %q", a, b)
	}
	p.Pass()
	if a, b, c := used.say("x", short), made.say("x", short), idle.say("y", long); a != "" || b != "" || c != "a y" {
		t.Errorf("%q, %q, %q", a, b, c)
	}
}

func TestDelayHoldsAnswersBack(t *testing.T) {
	p := Start(t, echo(t, "a"))
	c := dial(t, p.Addr)
	p.Delay(200 * time.Millisecond)
	began := time.Now()
	if got := c.say("x", long); got != "a x" || time.Since(began) < 200*time.Millisecond {
		t.Errorf("%q after %s", got, time.Since(began))
	}
}

func TestForwardMovesToAnotherServer(t *testing.T) {
	p := Start(t, echo(t, "a"))
	c := dial(t, p.Addr)
	c.say("x", long)
	p.Forward(echo(t, "b"))
	if got := c.say("x", long); got != "" {
		t.Errorf("the old connection answers %q", got)
	}
	if got := dial(t, p.Addr).say("x", long); got != "b x" {
		t.Errorf("%q", got)
	}
}
