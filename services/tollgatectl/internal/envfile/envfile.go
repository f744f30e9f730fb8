// Package envfile finds what a running standalone wrote for its users: .tollgate/env in the current directory or a parent.
package envfile

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Name is the file's path below the directory it is looked for in.
const Name = ".tollgate/env"

// Find gives the path of the nearest file in dir or a parent, or "" if there is none.
func Find(dir string) string {
	for {
		p := filepath.Join(dir, Name)
		if st, err := os.Stat(p); err == nil && st.Mode().IsRegular() {
			return p
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return ""
		}
		dir = parent
	}
}

// Vars looks names up: first in environ ("NAME=value" lines), then in the env file nearest to dir, if there is one.
func Vars(environ []string, dir string) (func(name string) string, error) {
	return VarsIn(environ, Find(dir))
}

// VarsIn looks names up: first in environ ("NAME=value" lines), then in the file p, which must be there unless p is "".
func VarsIn(environ []string, p string) (func(name string) string, error) {
	vars := map[string]string{}
	if p != "" {
		f, err := os.Open(p) //nolint:gosec // the path is the user's own
		if err != nil {
			return nil, fmt.Errorf("read the environment file: %w", err)
		}
		defer func() { _ = f.Close() }()
		if vars, err = Parse(f); err != nil {
			return nil, fmt.Errorf("read %s: %w", p, err)
		}
	}
	for _, kv := range environ {
		if k, v, ok := strings.Cut(kv, "="); ok && v != "" {
			vars[k] = v
		}
	}
	return func(name string) string { return vars[name] }, nil
}

// Parse reads NAME=value lines as a shell would source them: "export " before the name, quotes around the value, # comments.
func Parse(r io.Reader) (map[string]string, error) {
	out := map[string]string{}
	sc := bufio.NewScanner(r)
	for n := 1; sc.Scan(); n++ {
		line := strings.TrimSpace(sc.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		k, v, ok := strings.Cut(strings.TrimPrefix(line, "export "), "=")
		if !ok {
			return nil, fmt.Errorf("line %d: want NAME=value", n)
		}
		if len(v) >= 2 && (v[0] == '\'' || v[0] == '"') && v[len(v)-1] == v[0] {
			v = v[1 : len(v)-1]
		}
		out[strings.TrimSpace(k)] = v
	}
	return out, sc.Err()
}
