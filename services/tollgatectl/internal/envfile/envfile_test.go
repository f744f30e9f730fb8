package envfile

import (
	"os"
	"path/filepath"
	"testing"
)

func TestEnvironmentWinsOverTheNearestFileAboveTheDirectory(t *testing.T) {
	root := t.TempDir()
	deep := filepath.Join(root, "a", "b")
	if err := os.MkdirAll(filepath.Join(root, ".tollgate"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(deep, 0o700); err != nil {
		t.Fatal(err)
	}
	text := "# made by standalone\n\nexport TOLLGATE_A='one=1'\nTOLLGATE_B=\"two\"\nTOLLGATE_C=three\nTOLLGATE_D=four\n"
	if err := os.WriteFile(filepath.Join(root, Name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	get, err := Vars([]string{"TOLLGATE_C=mine", "TOLLGATE_D="}, deep)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"TOLLGATE_A": "one=1", "TOLLGATE_B": "two", "TOLLGATE_C": "mine", "TOLLGATE_D": "four", "TOLLGATE_E": ""} {
		if got := get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}

func TestNoFileIsNoError(t *testing.T) {
	get, err := Vars([]string{"TOLLGATE_A=x"}, t.TempDir())
	if err != nil || get("TOLLGATE_A") != "x" {
		t.Fatalf("%q, %v", get("TOLLGATE_A"), err)
	}
}
