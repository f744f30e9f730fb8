package cache

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// item is one whose download is a shell script; runs counts how often it began.
func item(script string, runs *atomic.Int32) Item {
	return Item{Title: "Thing 1", Place: filepath.Join("npm", "thing-1"), File: "file", Remedy: "do without", Command: func(dir string) (*exec.Cmd, error) {
		runs.Add(1)
		cmd := exec.Command("sh", "-c", script)
		cmd.Dir = dir
		return cmd, nil
	}}
}

func TestManyAskersDownloadOnce(t *testing.T) {
	t.Setenv(DirEnv, t.TempDir())
	var runs atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			dir, err := Ensure(context.Background(), item("echo x > file", &runs), nil)
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := os.Stat(filepath.Join(dir, "file")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if runs.Load() != 1 {
		t.Fatalf("downloaded %d times", runs.Load())
	}
}

func TestFailedOrInterruptedDownloadLeavesNothingAndCanBeRepeated(t *testing.T) {
	root := t.TempDir()
	t.Setenv(DirEnv, root)
	var runs atomic.Int32
	_, err := Ensure(t.Context(), item("echo x > half; echo the disk burns >&2; exit 3", &runs), nil)
	if err == nil || !strings.Contains(err.Error(), "the disk burns") || !strings.Contains(err.Error(), "do without") {
		t.Fatalf("got %v", err)
	}
	if _, err := Ensure(t.Context(), item("true", &runs), nil); err == nil {
		t.Fatal("a download without its file is taken for complete")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Ensure(ctx, item("echo x > half; sleep 600", &runs), nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v", err)
	}
	left := filepath.Join(root, "npm", "thing-1.tmp", "file") // by a process that was killed
	if err := os.MkdirAll(filepath.Dir(left), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(left, []byte("half"), 0o644); err != nil {
		t.Fatal(err)
	}
	dir, err := Ensure(t.Context(), item("[ ! -e file ] && echo whole > file", &runs), nil)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || string(b) != "whole\n" {
		t.Fatalf("%q, %v", b, err)
	}
}

func TestProgressIsVisible(t *testing.T) {
	t.Setenv(DirEnv, t.TempDir())
	var out bytes.Buffer
	if _, err := Ensure(t.Context(), item("echo x > file; sleep 1.3", new(atomic.Int32)), &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"downloading", "1 s", "ready"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
}
