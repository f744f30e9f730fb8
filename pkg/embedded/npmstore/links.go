package npmstore

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

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
