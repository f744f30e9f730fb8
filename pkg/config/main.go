package config

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/caarlos0/env/v11"
)

// Service is what Main needs of a config: where its HTTP API listens.
type Service interface {
	Validator
	ListenAddr() string
}

// Main is the whole of a service's main: flags, environment, run until SIGINT or SIGTERM, exit code. 0: stopped as asked or checks
// passed. 1: it failed. 2: the command line or the configuration is wrong.
func Main(name string, cfg Service, run func(context.Context) error) int {
	return mainWith(name, cfg, run, os.Args[1:], os.Environ(), os.Stdout, os.Stderr)
}

func mainWith(name string, cfg Service, run func(context.Context) error, args, environ []string, stdout, stderr io.Writer) int {
	flags, err := ParseFlags(name, args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", name, err)
		return 2
	}
	if err := Load(environ, cfg); err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", name, err)
		return 2
	}
	switch {
	case flags.CheckConfig:
		return printConfig(cfg, stdout, stderr)
	case flags.HealthCheck:
		return healthCheck(cfg.ListenAddr(), stderr)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", name, err)
		return 1
	}
	return 0
}

// printConfig shows the effective settings as KEY=value lines, secrets redacted.
func printConfig(cfg Service, stdout, stderr io.Writer) int {
	params, err := env.GetFieldParams(cfg)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	values, err := fieldValues(cfg)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	for _, p := range params {
		if p.Key != "" {
			fmt.Fprintf(stdout, "%s=%s\n", p.Key, values[p.Key])
		}
	}
	fmt.Fprintln(stdout, "configuration is valid")
	return 0
}

func healthCheck(addr string, stderr io.Writer) int {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	if host == "" || host == "0.0.0.0" || host == "::" {
		host = "127.0.0.1"
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(host, port)+"/readyz", nil)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		fmt.Fprintf(stderr, "not ready: %s\n", resp.Status)
		return 1
	}
	return 0
}
