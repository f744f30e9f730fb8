package kept

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

func TestTokensAreMadeOnceAndKept(t *testing.T) {
	dir := t.TempDir()
	first, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	first.Ports["redis"] = 1234
	if err := first.Save(dir); err != nil {
		t.Fatal(err)
	}
	second, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if second.AdminToken != first.AdminToken || second.FinancePassword != first.FinancePassword || second.Ports["redis"] != 1234 {
		t.Errorf("kept %+v, was %+v", second, first)
	}
	if first.ServiceToken == first.AdminToken || len(first.ServiceToken) < 30 {
		t.Errorf("weak tokens: %+v", first)
	}
	st, err := os.Stat(filepath.Join(dir, fileName))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
}

func TestEnvFileIsPrivateAndAShellReadsItBack(t *testing.T) {
	dir := t.TempDir()
	nasty := "post'gres://u:p$(x)@h/d?a=b&c=`d` \"e\""
	for range 2 { // the second time over the first
		if err := WriteEnv(dir, []Var{{"TOLLGATE_A", nasty, ""}, {"TOLLGATE_B", "plain-1", ""}, {"TOLLGATE_C", "", "not yet"}}); err != nil {
			t.Fatal(err)
		}
	}
	st, err := os.Stat(filepath.Join(dir, EnvFile))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Fatalf("mode %v, %v", st.Mode(), err)
	}
	out, err := exec.CommandContext(t.Context(), "sh", "-c", `. "$0/env"; printf '%s|%s|%s' "$TOLLGATE_A" "$TOLLGATE_B" "$TOLLGATE_C"`, dir).Output()
	if err != nil || string(out) != nasty+"|plain-1|" {
		t.Errorf("a shell read %q, %v", out, err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".env-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}
