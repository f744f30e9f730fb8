// Package config reads a service's settings from the environment once, at start: every fault is reported at once, with the
// variable's name, and secrets print as "[redacted]". Nothing below a service's main reads the environment.
package config

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/caarlos0/env/v11"
)

// Secret is a setting that no log, error or -check-config output shows.
type Secret string

const redacted = "[redacted]"

func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return redacted
}

// GoString keeps %#v from showing it.
func (s Secret) GoString() string { return s.String() }

// LogValue implements slog.LogValuer.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText implements encoding.TextMarshaler.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Reveal gives the secret itself.
func (s Secret) Reveal() string { return string(s) }

// Validator is a config that can check what tags can't say. It returns one error per fault, joined, each beginning with the
// variable's name.
type Validator interface{ Validate() error }

// Load fills the struct that cfg points to from environ ("NAME=value" lines, as os.Environ gives them), by its env, envDefault
// and required tags (github.com/caarlos0/env), then validates it. The error names every fault, one a line.
func Load(environ []string, cfg Validator) error {
	vars := make(map[string]string, len(environ))
	for _, kv := range environ {
		if k, v, ok := strings.Cut(kv, "="); ok && v != "" { // set but empty is unset, as compose files write it
			vars[k] = v
		}
	}
	var faults []error
	if err := env.ParseWithOptions(cfg, env.Options{Environment: vars}); err != nil {
		var agg env.AggregateError
		if errors.As(err, &agg) {
			faults = append(faults, agg.Errors...)
		} else {
			faults = append(faults, err)
		}
	}
	if err := cfg.Validate(); err != nil {
		faults = append(faults, err)
	}
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("configuration:\n%w", err)
	}
	return nil
}

// Flags are those every service's main takes.
type Flags struct {
	CheckConfig bool // validate, print, exit
	HealthCheck bool // ask a running instance's /readyz, exit 0 or 1
}

// ParseFlags reads the command line of a service.
func ParseFlags(name string, args []string, stderr io.Writer) (Flags, error) {
	var f Flags
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.BoolVar(&f.CheckConfig, "check-config", false, "validate the configuration, print it without secrets, and exit")
	fs.BoolVar(&f.HealthCheck, "healthcheck", false, "ask the running instance whether it is ready, and exit 0 or 1")
	if err := fs.Parse(args); err != nil {
		return f, err
	}
	if fs.NArg() > 0 {
		return f, fmt.Errorf("unexpected argument %q; settings come from TOLLGATE_… variables", fs.Arg(0))
	}
	return f, nil
}
