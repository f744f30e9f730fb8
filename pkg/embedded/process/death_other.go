//go:build !linux

package process

import (
	"os/exec"
	"syscall"
)

// There is no parent-death signal outside Linux.
func signalOnParentDeath(*exec.Cmd, syscall.Signal) {}
