package realkafka

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"

	"github.com/tollgate-dev/tollgate/pkg/embedded/cache"
)

//go:embed pom.xml
var pom []byte

const minJava = 17

const remedy = "install Java 17 or newer and Maven (Debian: apt-get install openjdk-17-jre-headless maven) so that java and mvn are on PATH"

// Fetch returns the directory with Kafka's jars, and downloads them by Maven first if need be, reporting to progress (which may
// be nil).
func Fetch(ctx context.Context, progress io.Writer) (string, error) {
	sum := sha256.Sum256(pom)
	dir, err := cache.Ensure(ctx, cache.Item{
		Title:  "Apache Kafka",
		Place:  filepath.Join("maven", "kafka-"+hex.EncodeToString(sum[:5])),
		File:   filepath.Join("lib", "slf4j-simple-1.7.36.jar"),
		SizeMB: 43,
		Remedy: "the real Kafka is needed by tests only",
		Command: func(dir string) (*exec.Cmd, error) {
			mvn, err := exec.LookPath("mvn")
			if err != nil {
				return nil, fmt.Errorf("mvn was not found: %s", remedy)
			}
			if err := os.WriteFile(filepath.Join(dir, "pom.xml"), pom, 0o644); err != nil {
				return nil, fmt.Errorf("write pom.xml: %w", err)
			}
			cmd := exec.Command(mvn, "--batch-mode", "--quiet", "--strict-checksums", "dependency:copy-dependencies",
				"-DincludeScope=runtime", "-DoutputDirectory="+filepath.Join(dir, "lib"))
			cmd.Dir = dir
			return cmd, nil
		},
	}, progress)
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "lib"), nil
}

// findJava returns the path of a java that is new enough.
func findJava() (string, error) {
	java, err := exec.LookPath("java")
	if err != nil {
		return "", fmt.Errorf("java was not found: %s", remedy)
	}
	out, err := exec.Command(java, "-version").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("ask %s for its version: %w: %s", java, err, out)
	}
	m := regexp.MustCompile(`version "(\d+)`).FindSubmatch(out)
	if m == nil {
		return "", fmt.Errorf("%s tells no version: %s", java, out)
	}
	if major, err := strconv.Atoi(string(m[1])); err != nil || major < minJava {
		return "", fmt.Errorf("%s is version %s: %s", java, m[1], remedy)
	}
	return java, nil
}
