package process

import (
	"os/exec"
	"syscall"
)

func signalOnParentDeath(cmd *exec.Cmd, s syscall.Signal) {
	cmd.SysProcAttr.Pdeathsig = s
}
