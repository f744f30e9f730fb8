package realredis

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"syscall"

	"github.com/tollgate-dev/tollgate/pkg/embedded/cache"
	"github.com/tollgate-dev/tollgate/pkg/embedded/process"
)

const (
	minMajor = 7
	remedy   = "install redis-server 7 or newer (Debian: apt-get install redis-server; macOS: brew install redis) so that it is on PATH"
)

// find returns the path of redis-server, looking once for a test binary.
var find = sync.OnceValues(func() (string, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		if err := install(context.Background()); err != nil {
			return "", fmt.Errorf("redis-server was not found, and %w: %s", err, remedy)
		}
		if path, err = exec.LookPath("redis-server"); err != nil {
			return "", fmt.Errorf("redis-server was installed but is not on PATH: %w", err)
		}
	}
	out, err := exec.Command(path, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("ask %s for its version: %w", path, err)
	}
	m := regexp.MustCompile(`v=(\d+)\.`).FindSubmatch(out)
	if m == nil {
		return "", fmt.Errorf("%s tells no version: %s", path, bytes.TrimSpace(out))
	}
	if major, err := strconv.Atoi(string(m[1])); err != nil || major < minMajor {
		return "", fmt.Errorf("%s is too old (%s): %s", path, bytes.TrimSpace(out), remedy)
	}
	return path, nil
})

// install installs Debian's redis-server, one process at a time.
func install(ctx context.Context) error {
	apt, err := exec.LookPath("apt-get")
	if err != nil {
		return errors.New("there is no apt-get to install it")
	}
	if os.Geteuid() != 0 {
		return errors.New("only root may install it")
	}
	dir, err := cache.Dir()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("the cache directory cannot be made: %w", err)
	}
	lock, err := process.LockWait(ctx, filepath.Join(dir, "apt.lock"))
	if err != nil {
		return fmt.Errorf("another installation did not end: %w", err)
	}
	defer lock.Close()
	if _, err := exec.LookPath("redis-server"); err == nil {
		return nil // another process was faster
	}
	for _, args := range [][]string{{"update", "-q"}, {"install", "-q", "-y", "--no-install-recommends", "redis-server"}} {
		fmt.Fprintln(os.Stderr, "realredis: apt-get", args[0], "(redis-server)")
		cmd := exec.CommandContext(ctx, apt, args...)
		// RUNLEVEL=1: the package's scripts start no service in the single-user level.
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1")
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		child, err := process.Start(cmd, syscall.SIGTERM)
		if err == nil {
			err = child.Err()
		}
		if err != nil {
			return fmt.Errorf("apt-get %s failed (%w): %s", args[0], err, bytes.TrimSpace(out.Bytes()))
		}
	}
	return nil
}
