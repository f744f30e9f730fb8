package boltspool

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

// A file that a bad disk or a bad copy has spoilt ends in an error, never in a panic, and is left as it is.
func TestADamagedFileIsNamed(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 300 {
		add(t, s, fmt.Sprintf("%03d%s", i, bytes.Repeat([]byte("x"), 700)))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(filepath.Join(dir, File))
	if err != nil {
		t.Fatal(err)
	}
	half := bytes.Clone(whole)
	clear(half[len(half)/2:])
	files := map[string][]byte{"second half zeroed": half, "cut to a page": whole[:4096]}
	for _, n := range []int{2, 3, 4} {
		files[fmt.Sprintf("cut to 1/%d", n)] = whole[:len(whole)/n]
	}
	for seed := range uint64(20) {
		b, rng := bytes.Clone(whole), rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a test
		for range 200 {
			b[8192+rng.IntN(len(b)-8192)] ^= byte(1 + rng.IntN(255))
		}
		files[fmt.Sprint("garbled ", seed)] = b
	}
	refused := 0
	for name, b := range files {
		path := filepath.Join(t.TempDir(), File)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Open(filepath.Dir(path), Options{})
		if err != nil {
			refused++
			if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, b) {
				t.Errorf("%s: the file was changed: %v", name, err)
			}
			continue
		}
		if _, _, err := s.Oldest(1<<30, 1<<30); err != nil && !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
		if err := s.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if refused < 5 {
		t.Errorf("only %d of %d files were refused", refused, len(files))
	}
}
