package clickhouse

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/landlock-lsm/go-landlock/landlock"
	landlocksys "github.com/landlock-lsm/go-landlock/landlock/syscall"
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
	if abi, err := landlocksys.LandlockGetABIVersion(); err != nil || abi < 2 {
		return errUnconfined
	}
	own, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("find the working directory: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this executable: %w", err)
	}
	// Its own part of /proc. The descriptor stays open for the server's life: a rule holds for what the system keeps of a file, and it makes that of /proc anew.
	if _, err := unix.Open("/proc/self", unix.O_PATH, 0); err != nil {
		return fmt.Errorf("open /proc/self: %w", err)
	}
	c := landlock.Config{HandledAccessFS: landlocksys.AccessFSReadFile | landlocksys.AccessFSRefer}
	rules, flags, err := c.NewRulesetFD(
		landlock.PathAccess(landlocksys.AccessFSRefer, "/"), // else nothing could be moved from one directory to another
		landlock.PathAccess(landlocksys.AccessFSReadFile, own, filepath.Dir(library), self, "/proc/self"),
		landlock.PathAccess(landlocksys.AccessFSReadFile, readable...).IgnoreIfMissing())
	if err != nil {
		return fmt.Errorf("make rules for the server's files: %w", err)
	}
	defer unix.Close(rules)
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("give up new privileges: %w", err)
	}
	// Of this thread alone (decision 0032).
	if err := landlocksys.LandlockRestrictSelf(rules, flags); err != nil {
		return fmt.Errorf("confine the server to its files: %w", err)
	}
	return nil
}
