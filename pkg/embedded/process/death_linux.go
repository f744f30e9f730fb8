package process

import (
	"os/exec"
	"syscall"
)

func signalOnParentDeath(cmd *exec.Cmd, s syscall.Signal) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = s
}
