package process

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"
)

// ErrPortInUse says that something else listens on a wanted port.
var ErrPortInUse = errors.New("port is in use")

// Addr is the loopback address of a port.
func Addr(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// CheckPort fails with ErrPortInUse if the loopback port is taken; 0 never is. name says what the port is for.
func CheckPort(name string, port int) error {
	if port == 0 {
		return nil
	}
	l, err := net.Listen("tcp", Addr(port))
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%s port %d: %w: stop what listens there or choose another port", name, port, ErrPortInUse)
	}
	if err != nil {
		return fmt.Errorf("%s port %d: %w", name, port, err)
	}
	return l.Close()
}

// FreePort finds a loopback port that is free now. Another process may take it before it is used, so a server that fails to
// listen on it should be tried again on another.
func FreePort() (int, error) {
	l, err := net.Listen("tcp", Addr(0))
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	port := l.Addr().(*net.TCPAddr).Port //nolint:errcheck // a TCP listener has no other address
	if err := l.Close(); err != nil {
		return 0, fmt.Errorf("release port %d: %w", port, err)
	}
	return port, nil
}
