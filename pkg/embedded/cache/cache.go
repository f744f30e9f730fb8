package cache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/embedded/process"
)

// DirEnv names the environment variable that replaces the cache directory.
const DirEnv = "TOLLGATE_CACHE_DIR"

// progressEvery is how often a download reports.
const progressEvery = time.Second

// Dir is the cache directory: $TOLLGATE_CACHE_DIR, else tollgate in the user's cache directory. It may not exist yet.
func Dir() (string, error) {
	if dir := os.Getenv(DirEnv); dir != "" {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return "", fmt.Errorf("resolve %s: %w", DirEnv, err)
		}
		return abs, nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the user's cache directory: %w: set HOME or %s", err, DirEnv)
	}
	return filepath.Join(dir, "tollgate"), nil
}

// Item is something to keep in the cache.
type Item struct {
	Title  string // for people, with the version
	Place  string // directory, relative to Dir; another version has another
	File   string // relative to Place: what tells that the item is there
	SizeMB int    // about, for the progress line
	Remedy string // what a person can do if the download fails

	// Command is the download: it fills the directory. It is called only if the item is not there.
	Command func(dir string) (*exec.Cmd, error)
	// Finish, which may be nil, completes what Command has fetched.
	Finish func(dir string) error
}

// Ensure returns the item's directory, after downloading it if need be, and reports that to progress (which may be nil).
func Ensure(ctx context.Context, it Item, progress io.Writer) (string, error) {
	if progress == nil {
		progress = io.Discard
	}
	root, err := Dir()
	if err != nil {
		return "", err
	}
	final := filepath.Join(root, it.Place)
	if it.present(final) {
		return final, nil
	}
	if err := os.MkdirAll(filepath.Dir(final), 0o755); err != nil {
		return "", fmt.Errorf("make the cache directory: %w: set %s to a directory that can be written", err, DirEnv)
	}
	fmt.Fprintf(progress, "%s: not in %s yet\n", it.Title, filepath.Dir(final))
	lock, err := process.LockWait(ctx, final+".lock")
	if err != nil {
		return "", fmt.Errorf("wait for another download of %s: %w", it.Title, err)
	}
	defer lock.Close()
	if it.present(final) {
		return final, nil // another process was faster
	}
	if err := it.download(ctx, final, progress); err != nil {
		return "", fmt.Errorf("fetch %s: %w", it.Title, err)
	}
	return final, nil
}

func (it Item) present(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, it.File))
	return err == nil
}

// download fills the place. The caller holds its lock, so whatever lies there or beside it was left by an interrupted download
// and can go.
func (it Item) download(ctx context.Context, final string, progress io.Writer) (err error) {
	tmp := final + ".tmp"
	for _, dir := range []string{tmp, final} {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("remove what an interrupted download left: %w", err)
		}
	}
	if err := os.Mkdir(tmp, 0o755); err != nil {
		return fmt.Errorf("make the download directory: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(tmp))
		}
	}()
	cmd, err := it.Command(tmp)
	if err != nil {
		return err
	}
	began := time.Now()
	fmt.Fprintf(progress, "%s: downloading by %s, about %d MB unpacked\n", it.Title, filepath.Base(cmd.Path), it.SizeMB)
	if err := it.await(ctx, cmd, tmp, progress, began); err != nil {
		return err
	}
	if it.Finish != nil {
		if err := it.Finish(tmp); err != nil {
			return err
		}
	}
	if !it.present(tmp) {
		return fmt.Errorf("the download came without %s", it.File)
	}
	if err := os.Rename(tmp, final); err != nil {
		return fmt.Errorf("put the download in its place: %w", err)
	}
	fmt.Fprintf(progress, "%s: ready, %d MB in %.1f s\n", it.Title, treeSize(final)>>20, time.Since(began).Seconds())
	return nil
}

// await runs cmd and reports how much has arrived.
func (it Item) await(ctx context.Context, cmd *exec.Cmd, tmp string, progress io.Writer, began time.Time) error {
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	child, err := process.Start(cmd, syscall.SIGKILL)
	if err != nil {
		return err
	}
	ticker := time.NewTicker(progressEvery)
	defer ticker.Stop()
	for {
		select {
		case <-child.Done():
			if err := child.Err(); err != nil {
				return fmt.Errorf("%s failed (%w): check the network, its registry setting and the disk's free space, then try again; %s; it said:\n%s",
					filepath.Base(cmd.Path), err, it.Remedy, bytes.TrimSpace(out.Bytes()))
			}
			return nil
		case <-ticker.C:
			fmt.Fprintf(progress, "%s: %d of about %d MB, %d s\n", it.Title, treeSize(tmp)>>20, it.SizeMB, int(time.Since(began).Seconds()))
		case <-ctx.Done():
			child.Kill()
			return ctx.Err()
		}
	}
}

// treeSize is the number of bytes under dir, as far as it can be read while something still writes there.
func treeSize(dir string) (bytes int64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil //nolint:nilerr // files come and go meanwhile
		}
		if info, err := d.Info(); err == nil {
			bytes += info.Size()
		}
		return nil
	})
	return bytes
}
