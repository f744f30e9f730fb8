package postgres

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// childEnv marks the child and says as whom to run: "uid gid capability parent". capability is -1 for none.
const childEnv = "TOLLGATE_INTERNAL_POSTGRES_AS"

// childReady tells that this executable can be its own child: one that does not call MaybeRunChild would start itself for ever.
var childReady atomic.Bool

// MaybeRunChild becomes the server, in the child process that Start makes as root; elsewhere it returns at once. It must be
// the first call in main and in TestMain.
func MaybeRunChild() {
	as := os.Getenv(childEnv)
	if as == "" {
		childReady.Store(true)
		return
	}
	err := becomeServer(as, os.Args[1:])
	fmt.Fprintln(os.Stderr, "postgres:", err)
	os.Exit(1)
}

// account is the unprivileged user that the server runs as; the zero value stands for the caller.
type account struct{ uid, gid int }

// serverAccount is the caller's own account, or as root an unprivileged one: the owner of an existing dir, postgres or nobody.
func serverAccount(dir string) (account, error) {
	if os.Geteuid() != 0 {
		return account{}, nil
	}
	if !childReady.Load() {
		return account{}, ErrNoChildHook
	}
	if info, err := os.Stat(dir); err == nil {
		if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 {
			return account{uid: int(st.Uid), gid: int(st.Gid)}, nil
		}
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, errUID := strconv.Atoi(u.Uid)
		gid, errGID := strconv.Atoi(u.Gid)
		if errUID == nil && errGID == nil && uid != 0 {
			return account{uid: uid, gid: gid}, nil
		}
	}
	return account{uid: 65534, gid: 65534}, nil
}

// command is a command that runs as the account and can reach the given paths.
func (a account) command(paths []string, name string, args ...string) (*exec.Cmd, error) {
	if a.uid == 0 {
		return exec.Command(name, args...), nil
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this executable: %w", err)
	}
	capability := -1
	for _, p := range paths {
		if !a.reaches(p) {
			if capability, err = passCapability(); err != nil {
				return nil, fmt.Errorf("let user %d reach %s: %w", a.uid, p, err)
			}
			break
		}
	}
	cmd := exec.Command(self, append([]string{name}, args...)...)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d %d %d", childEnv, a.uid, a.gid, capability, os.Getpid()))
	return cmd, nil
}

// reaches says whether the account, a member of no other group, may pass every directory above path.
func (a account) reaches(path string) bool {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return false
	}
	for dir := filepath.Dir(real); ; dir = filepath.Dir(dir) {
		var st unix.Stat_t
		if unix.Stat(dir, &st) != nil {
			return false
		}
		bit := uint32(0o001)
		switch {
		case int(st.Uid) == a.uid:
			bit = 0o100
		case int(st.Gid) == a.gid:
			bit = 0o010
		}
		if st.Mode&bit == 0 {
			return false
		}
		if dir == filepath.Dir(dir) {
			return true
		}
	}
}

// passCapability is the least capability of this process that lets another user pass closed directories.
func passCapability() (int, error) {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return 0, fmt.Errorf("read capabilities: %w", err)
	}
	for _, c := range []int{unix.CAP_DAC_READ_SEARCH, unix.CAP_DAC_OVERRIDE} {
		if data[0].Permitted&(1<<c) != 0 {
			return c, nil
		}
	}
	return 0, fmt.Errorf("no capability to do so: use directories that everybody may enter, or run as an ordinary user")
}

// own gives path to the account.
func (a account) own(path string) error {
	if a.uid == 0 {
		return nil
	}
	if err := os.Chown(path, a.uid, a.gid); err != nil {
		return fmt.Errorf("give %s to user %d: %w", path, a.uid, err)
	}
	return nil
}

// becomeServer drops root and executes args. It returns only on failure. Everything is done on one thread, which becomes the
// new program's only one.
func becomeServer(as string, args []string) error {
	runtime.LockOSThread()
	var uid, gid, capability, parent int
	if _, err := fmt.Sscan(as, &uid, &gid, &capability, &parent); err != nil {
		return fmt.Errorf("parse %s: %w", childEnv, err)
	}
	if len(args) == 0 {
		return fmt.Errorf("nothing to execute")
	}
	if capability >= 0 {
		// Without this bit access(2), by which PostgreSQL looks for its programs, disregards the capability.
		const noSetuidFixup = 1 << 2
		if err := unix.Prctl(unix.PR_SET_SECUREBITS, noSetuidFixup, 0, 0, 0); err != nil {
			return fmt.Errorf("set secure bits: %w", err)
		}
	}
	for _, step := range []struct {
		what          string
		call, a, b, c uintptr
	}{
		{"drop groups", unix.SYS_SETGROUPS, 0, 0, 0},
		{"change group", unix.SYS_SETRESGID, uintptr(gid), uintptr(gid), uintptr(gid)},
		{"change user", unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)},
	} {
		if _, _, errno := unix.RawSyscall(step.call, step.a, step.b, step.c); errno != 0 {
			return fmt.Errorf("%s: %w", step.what, errno)
		}
	}
	if err := keepOnly(capability); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGQUIT), 0, 0, 0); err != nil { // the change of user reset it
		return fmt.Errorf("set the parent-death signal: %w", err)
	}
	if os.Getppid() != parent {
		return fmt.Errorf("the parent is gone")
	}
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, childEnv+"=") {
			env = append(env, e)
		}
	}
	if err := syscall.Exec(args[0], args, env); err != nil {
		return fmt.Errorf("execute %s: %w", args[0], err)
	}
	return nil
}

// keepOnly drops every capability but one (none if negative), which survives the next exec.
func keepOnly(capability int) error {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if capability >= 0 {
		bit := uint32(1) << capability
		data[0] = unix.CapUserData{Effective: bit, Permitted: bit, Inheritable: bit}
	}
	if err := unix.Capset(&hdr, &data[0]); err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	if capability < 0 {
		return nil
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, uintptr(capability), 0, 0); err != nil {
		return fmt.Errorf("keep capability %d: %w", capability, err)
	}
	return nil
}
