package kept

import (
	"fmt"
	"path/filepath"
	"strings"
)

// EnvFile is the name of the file in the data directory that shells and tools read.
const EnvFile = "env"

// Var is one line of the env file. One with no value is written as a comment: it is promised for later.
type Var struct{ Name, Value, Comment string }

// WriteEnv writes NAME=value lines that a shell can source, mode 0600, all at once.
func WriteEnv(dir string, vars []Var) error {
	var b strings.Builder
	b.WriteString("# Written by standalone at every start. Source it:  . .tollgate/env\n" +
		"# Export it in a subshell only: standalone takes a store's URL in its environment for a store of yours.\n# It holds secrets: keep it to yourself.\n")
	for _, v := range vars {
		switch {
		case v.Value == "":
			fmt.Fprintf(&b, "# %s= %s\n", v.Name, v.Comment)
		default:
			fmt.Fprintf(&b, "%s=%s\n", v.Name, quote(v.Value))
		}
	}
	return WriteFile(filepath.Join(dir, EnvFile), []byte(b.String()))
}

// quote leaves alone what no shell changes.
func quote(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_-./:@,=%+", r)
	}
	if strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
