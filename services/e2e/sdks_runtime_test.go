//go:build sdks

package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/embedded/cache"
	"github.com/tollgate-dev/tollgate/pkg/embedded/process"
)

// sdkRuntime is what runs the tests of an SDK. The SDK is fetched once, in the versions that the lock file names, by the runtime's own packager and the
// registry that the user has set up, into the user's cache.
type sdkRuntime struct {
	program string
	probe   []string // arguments that make it tell its version
	least   [2]int   // version
	remedy  string
	files   []string // of the SDK's folder, that say what to fetch; the last is the lock file
	title   string
	sizeMB  int
	present string // tells that it has been fetched
	fetch   func(program, dir string) (*exec.Cmd, error)
	tests   func(program, sdk string) *exec.Cmd // run in the folder
}

var javascript = sdkRuntime{
	program: "node", probe: []string{"-e", "process.stdout.write(process.versions.node)"}, least: [2]int{20, 0},
	remedy: "install Node.js 20 or newer with npm (https://nodejs.org, or your system's packages nodejs and npm)",
	files:  []string{"package.json", "package-lock.json"}, title: "OpenAI's JavaScript SDK", sizeMB: 30,
	present: filepath.Join("node_modules", "openai", "package.json"),
	fetch: func(_, dir string) (*exec.Cmd, error) {
		npm, err := exec.LookPath("npm")
		if err != nil {
			return nil, fmt.Errorf("npm was not found: install Node.js 20 or newer, which brings npm")
		}
		cmd := exec.Command(npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")
		cmd.Dir = dir
		return cmd, nil
	},
	tests: func(node, sdk string) *exec.Cmd {
		cmd := exec.Command(node, "--test", "--test-reporter=spec", "gateway.test.js")
		cmd.Env = append(os.Environ(), "NODE_PATH="+filepath.Join(sdk, "node_modules"))
		return cmd
	},
}

var python = sdkRuntime{
	program: "python3", probe: []string{"-c", "import platform; print(platform.python_version(), end='')"}, least: [2]int{3, 11},
	remedy: "install Python 3.11 or newer with venv and pip (https://www.python.org, or Debian's packages python3 and python3-venv)",
	files:  []string{"requirements.txt"}, title: "OpenAI's Python SDK", sizeMB: 70,
	present: filepath.Join("bin", "python"),
	fetch: func(python, dir string) (*exec.Cmd, error) {
		if out, err := exec.Command(python, "-m", "venv", dir).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("python3 -m venv failed (%w): install Debian's package python3-venv, or a Python that brings venv and pip; it said:\n%s", err, out)
		}
		cmd := exec.Command(filepath.Join(dir, "bin", "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes",
			"--only-binary=:all:", "-r", "requirements.txt")
		cmd.Dir = dir
		return cmd, nil
	},
	tests: func(_, sdk string) *exec.Cmd {
		cmd := exec.Command(filepath.Join(sdk, "bin", "python"), "-B", "-m", "unittest", "-v")
		cmd.Env = os.Environ()
		return cmd
	},
}

// prepare gives the command that runs the tests of an SDK, which are in folder.
func (r sdkRuntime) prepare(t *testing.T, folder string) *exec.Cmd {
	t.Helper()
	program, err := exec.LookPath(r.program)
	if err != nil {
		t.Fatalf("%s was not found: %s", r.program, r.remedy)
	}
	version, err := exec.Command(program, r.probe...).Output()
	if err != nil {
		t.Fatalf("ask %s for its version: %v", program, err)
	}
	if !atLeast(string(version), r.least) {
		t.Fatalf("%s is version %s: %s", program, version, r.remedy)
	}
	lock := sha256.New()
	texts := map[string][]byte{}
	for _, name := range r.files {
		if texts[name], err = os.ReadFile(filepath.Join(folder, name)); err != nil {
			t.Fatal(err)
		}
		lock.Write(texts[name])
	}
	fmt.Fprint(lock, program, string(version)) // an SDK may have parts that fit one version only
	sdk, err := cache.Ensure(t.Context(), cache.Item{Title: r.title, Place: filepath.Join("sdks", filepath.Base(folder)+"-"+hex.EncodeToString(lock.Sum(nil)[:5])),
		File: r.present, SizeMB: r.sizeMB, Remedy: "its versions are pinned in " + filepath.Join("services", "e2e", folder, r.files[len(r.files)-1]),
		Command: func(dir string) (*exec.Cmd, error) {
			for name, text := range texts {
				if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
					return nil, fmt.Errorf("say what to fetch: %w", err)
				}
			}
			return r.fetch(program, dir)
		}}, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	cmd := r.tests(program, sdk)
	cmd.Dir = folder
	return cmd
}

func atLeast(version string, least [2]int) bool {
	var v [2]int
	for i, part := range strings.SplitN(version, ".", 3)[:2] {
		v[i], _ = strconv.Atoi(part)
	}
	return v[0] > least[0] || v[0] == least[0] && v[1] >= least[1]
}

// testsWithin bounds a run of an SDK's tests. They take some ten seconds.
const testsWithin = 3 * time.Minute

// await runs a command to its end, and ends it, with all it has started, when it takes too long.
func await(t *testing.T, cmd *exec.Cmd) error {
	t.Helper()
	child, err := process.Start(cmd, syscall.SIGKILL)
	if err != nil {
		return err
	}
	defer child.Kill()
	select {
	case <-child.Done():
		return child.Err()
	case <-time.After(testsWithin):
		return fmt.Errorf("not done after %s", testsWithin)
	}
}
