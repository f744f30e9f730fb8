package postgres

import (
	"context"
	"os"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	MaybeRunChild()
	os.Exit(m.Run())
}

func TestX(t *testing.T) {
	t0 := time.Now()
	dir := t.TempDir()
	s, err := Start(context.Background(), Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Log(time.Since(t0), s.DSN("tollgate"))
	t0 = time.Now()
	t.Log(s.Close(context.Background()), time.Since(t0))
	b, _ := os.ReadFile(s.LogPath)
	t.Logf("%s", b)
}
