package clickhouse

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The local tool reads files for anybody who may query. It finds none but its own: neither the tokens beside its directory, nor what the environment of
// this process or its own holds. Spilling to disk, which reads its own files, works.
func TestNobodyReadsFilesOfTheHostThroughTheServer(t *testing.T) {
	const token = "TOLLGATE_ADMIN_TOKEN=abc"
	t.Setenv("TOLLGATE_ADMIN_TOKEN", "abc")
	home := t.TempDir()
	s := start(t, testOptions(filepath.Join(home, "clickhouse")))
	for _, path := range []string{filepath.Join(home, "env"), filepath.Join(t.TempDir(), "env")} {
		if err := os.WriteFile(path, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
		link := filepath.Join(home, "clickhouse", filepath.Base(home)+filepath.Base(filepath.Dir(path)))
		if err := os.Symlink(path, link); err != nil {
			t.Fatal(err)
		}
		for _, p := range []string{path, link, "../../" + filepath.Base(home) + "/env", "/proc/self/root" + path, "/etc/passwd", "/etc/shadow", fmt.Sprintf("/proc/%d/environ", os.Getpid()),
			fmt.Sprintf("/proc/%d/root%s", os.Getpid(), path)} {
			for user, password := range map[string]string{FinanceUser: s.FinancePassword, AppUser: s.AppPassword} {
				if status, body := httpQuery(t, s, user, password, "SELECT file('"+p+"')"); status == http.StatusOK || strings.Contains(body, token) {
					t.Errorf("%s reads %s: %.100s", user, p, body)
				}
			}
		}
	}
	if status, body := httpQuery(t, s, FinanceUser, s.FinancePassword, "SELECT file('/proc/self/environ')"); status == http.StatusOK && strings.Contains(body, "ADMIN_TOKEN") {
		t.Error("the server's own environment holds the token")
	}
	if status, body := httpQuery(t, s, FinanceUser, s.FinancePassword, "SELECT count() FROM (SELECT number, count() FROM numbers(3000000) GROUP BY number) SETTINGS max_bytes_before_external_group_by = 1000000, max_bytes_ratio_before_external_group_by = 0"); status != http.StatusOK || body != "3000000\n" {
		t.Errorf("spilling: %d, %s", status, body)
	}
	log, err := os.ReadFile(s.LogPath)
	if err != nil || strings.Contains(string(log), errUnconfined.Error()) {
		t.Errorf("%v: %s", err, log)
	}
}
