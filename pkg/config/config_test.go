package config

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

type sample struct {
	Addr  string        `env:"TOLLGATE_X_ADDR" envDefault:":1"`
	Token Secret        `env:"TOLLGATE_X_TOKEN,required"`
	URL   string        `env:"TOLLGATE_X_URL" envDefault:"redis://u:hunter2@localhost:1/0"`
	Wait  time.Duration `env:"TOLLGATE_X_WAIT" envDefault:"1s"`
	Count int           `env:"TOLLGATE_X_COUNT" envDefault:"1"`
}

func (s *sample) ListenAddr() string { return s.Addr }
func (s *sample) Validate() error {
	if s.Count < 1 {
		return errors.New("TOLLGATE_X_COUNT: must be at least 1")
	}
	return nil
}

func TestEveryFaultIsNamedAtOnce(t *testing.T) {
	err := Load([]string{"TOLLGATE_X_WAIT=soon", "TOLLGATE_X_COUNT=0"}, &sample{})
	if err == nil {
		t.Fatal("a wrong configuration was accepted")
	}
	for _, want := range []string{"TOLLGATE_X_TOKEN", "Wait", "TOLLGATE_X_COUNT"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not named in: %v", want, err)
		}
	}
}

func TestSecretsAreNeverPrinted(t *testing.T) {
	var out, errOut bytes.Buffer
	cfg := &sample{}
	code := mainWith("x", cfg, nil, []string{"-check-config"}, []string{"TOLLGATE_X_TOKEN=canary"}, &out, &errOut)
	if code != 0 {
		t.Fatal(code, errOut.String())
	}
	all := out.String() + errOut.String() + fmt.Sprintf("%v %+v %#v", cfg, cfg, *cfg)
	if strings.Contains(all, "canary") || strings.Contains(out.String(), "hunter2") {
		t.Errorf("a secret was printed: %s", all)
	}
	if cfg.Token.Reveal() != "canary" {
		t.Error("the secret was not read")
	}
}

func TestExitCodesTellWhoIsToBlame(t *testing.T) {
	env := []string{"TOLLGATE_X_TOKEN=t"}
	fail := func(context.Context) error { return errors.New("boom") }
	ok := func(context.Context) error { return nil }
	for _, c := range []struct {
		args, env []string
		run       func(context.Context) error
		want      int
	}{{nil, env, ok, 0}, {nil, env, fail, 1}, {nil, nil, ok, 2}, {[]string{"-nonsense"}, env, ok, 2}, {[]string{"stray"}, env, ok, 2}} {
		var out bytes.Buffer
		if got := mainWith("x", &sample{}, c.run, c.args, c.env, &out, &out); got != c.want {
			t.Errorf("args %v: exit code %d, want %d", c.args, got, c.want)
		}
	}
}
