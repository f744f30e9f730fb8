//go:build !linux

package postgres

import (
	"errors"
	"os"
	"os/exec"
)

// MaybeRunChild does nothing outside Linux.
func MaybeRunChild() {}

type account struct{}

func serverAccount(string) (account, error) {
	if os.Geteuid() == 0 {
		return account{}, errors.New("PostgreSQL does not run as root: run as an ordinary user")
	}
	return account{}, nil
}

func (account) command(_ []string, name string, args ...string) (*exec.Cmd, error) {
	return exec.Command(name, args...), nil
}

func (account) own(string) error { return nil }
