package e2e

import (
	"io"
	"os"
	"testing"

	"github.com/tollgate-dev/tollgate/services/e2e/internal/chaos"
)

// Each kind of crash, pause and full disk once, under load; `make chaos` is the long run.
func TestCrashesLoseNothingAndCountNothingTwice(t *testing.T) {
	log, err := os.Create(t.TempDir() + "/services.log")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	err = chaos.Run(t.Context(), chaos.Options{Records: 4000, Kills: chaos.Kinds(), Seed: 1, Out: t.Output(), Log: struct{ io.Writer }{log}})
	if err != nil {
		tail, _ := os.ReadFile(log.Name())
		t.Fatalf("%v\nthe services' last words:\n%s", err, tail[max(0, len(tail)-8000):])
	}
}
