package clickhouse

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// readable are the files and directories that any such process needs, beside its own: shared libraries, time zones, what the system is. Not /proc: there are
// the environments of other processes.
var readable = []string{"/usr", "/lib", "/lib64", "/nix/store", "/sys", "/dev", "/proc/sys", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/vmstat", "/proc/loadavg",
	"/proc/uptime", "/proc/version", "/proc/diskstats", "/proc/filesystems", "/proc/cgroups", "/proc/pressure", "/etc/ld.so.cache", "/etc/ld.so.preload", "/etc/localtime", "/etc/timezone",
	"/etc/nsswitch.conf", "/etc/hosts", "/etc/resolv.conf"}

// confine lets this thread, and what it executes, read no files but those of readable, the working directory, the library's directory and the executable:
// the local tool reads any file for whoever may query it (SELECT file('…')), whatever his grants. It uses Landlock, which needs no rights. The thread must be locked.
// errUnconfined: the kernel has no Landlock of version 2 or later (Linux 5.19).
func confine(library string) error {
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 || abi < 2 {
		return errUnconfined
	}
	// Without REFER in the rules nothing could be moved from one directory to another.
	handled := unix.LandlockRulesetAttr{Handled_access_fs: unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_REFER}
	rules, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&handled)), unsafe.Sizeof(handled.Handled_access_fs), 0)
	if errno != 0 {
		return fmt.Errorf("make rules for the server's files: %w", errno)
	}
	defer unix.Close(int(rules))
	own, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("find the working directory: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this executable: %w", err)
	}
	if err := allow(int(rules), "/", unix.LANDLOCK_ACCESS_FS_REFER); err != nil {
		return err
	}
	for _, path := range append([]string{own, filepath.Dir(library), self}, readable...) {
		if err := allow(int(rules), path, unix.LANDLOCK_ACCESS_FS_READ_FILE); err != nil {
			return err
		}
	}
	// Its own part of /proc. The open descriptor is for the server's life: a rule holds for what the system keeps of a file, and it makes that of /proc anew.
	process, err := unix.Open("/proc/self", unix.O_PATH, 0)
	if err != nil {
		return fmt.Errorf("open /proc/self: %w", err)
	}
	if err := allowBelow(int(rules), process, unix.LANDLOCK_ACCESS_FS_READ_FILE); err != nil {
		return fmt.Errorf("let the server read /proc/self: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("give up new privileges: %w", err)
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, rules, 0, 0); errno != 0 {
		return fmt.Errorf("confine the server to its files: %w", errno)
	}
	return nil
}

// allow adds a rule for what lies at path or below. What is not there needs none.
func allow(rules int, path string, access uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	defer unix.Close(fd)
	if err := allowBelow(rules, fd, access); err != nil {
		return fmt.Errorf("let the server read %s: %w", path, err)
	}
	return nil
}

func allowBelow(rules, fd int, access uint64) error {
	rule := unix.LandlockPathBeneathAttr{Allowed_access: access, Parent_fd: int32(fd)} //nolint:gosec // a file descriptor
	if _, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(rules), unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&rule)), 0, 0, 0); errno != 0 {
		return errno
	}
	return nil
}
