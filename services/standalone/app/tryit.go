package app

import (
	_ "embed"
	"path/filepath"
	"strings"

	"github.com/tollgate-dev/tollgate/services/standalone/internal/kept"
)

//go:embed tryit.txt
var tryItText string

// tryIt is what a person may type into another terminal. dir is the data directory as it was given.
func tryIt(dir string) string {
	file := filepath.Join(dir, kept.EnvFile)
	if !filepath.IsAbs(file) {
		file = "./" + file // without a slash in front, a shell's "." may look elsewhere
	}
	return strings.ReplaceAll(tryItText, "ENVFILE", file)
}
