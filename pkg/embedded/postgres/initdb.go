package postgres

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/tollgate-dev/tollgate/pkg/embedded/process"
)

// initialize makes the data directory if there is none, and returns User's password. The caller holds the directory's lock.
// The data directory is made under another name and renamed, so a half-made one is never taken for a whole.
func initialize(ctx context.Context, o Options, as account, dir string) (string, error) {
	data, passwordFile := filepath.Join(dir, "data"), filepath.Join(dir, "password")
	if _, err := os.Stat(data); err == nil {
		b, err := os.ReadFile(passwordFile)
		if err != nil {
			return "", fmt.Errorf("read the password of %s: %w", dir, err)
		}
		return strings.TrimSpace(string(b)), nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("look for the data directory: %w", err)
	}
	tmp := data + ".tmp"
	if err := os.RemoveAll(tmp); err != nil {
		return "", fmt.Errorf("remove a half-made data directory: %w", err)
	}
	var random [16]byte
	rand.Read(random[:]) // never fails (crypto/rand)
	password := hex.EncodeToString(random[:])
	if err := os.WriteFile(passwordFile, []byte(password+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("write the password: %w", err)
	}
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return "", fmt.Errorf("make the data directory: %w", err)
	}
	for _, path := range []string{passwordFile, tmp} {
		if err := as.own(path); err != nil {
			return "", err
		}
	}
	args := []string{"-D", tmp, "-U", User, "--pwfile=" + passwordFile, "--auth=scram-sha-256", "--encoding=UTF8",
		"--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"}
	if o.Unsafe {
		args = append(args, "--no-sync")
	}
	bin := filepath.Join(o.BinDir, "bin", "initdb")
	cmd, err := as.command([]string{bin, tmp}, bin, args...)
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &out
	child, err := process.Start(cmd, syscall.SIGKILL)
	if err != nil {
		return "", fmt.Errorf("run initdb: %w", err)
	}
	select {
	case <-child.Done():
	case <-ctx.Done():
		child.Kill()
		return "", fmt.Errorf("run initdb: %w", ctx.Err())
	}
	if err := child.Err(); err != nil {
		return "", fmt.Errorf("run initdb: %w: %s", err, bytes.TrimSpace(out.Bytes()))
	}
	if err := os.Rename(tmp, data); err != nil {
		return "", fmt.Errorf("put the data directory in its place: %w", err)
	}
	return password, nil
}
