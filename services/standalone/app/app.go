package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/config"
	"github.com/tollgate-dev/tollgate/pkg/embedded/process"
	"github.com/tollgate-dev/tollgate/pkg/lifecycle"
	"github.com/tollgate-dev/tollgate/pkg/observe"
	"github.com/tollgate-dev/tollgate/services/standalone/internal/console"
	"github.com/tollgate-dev/tollgate/services/standalone/internal/kept"
	"github.com/tollgate-dev/tollgate/services/standalone/internal/stores"
	"github.com/tollgate-dev/tollgate/services/standalone/internal/topics"
)

// Run starts everything, shows it, and serves until ctx ends. Errors: something could not start or failed by itself, or, with Exit,
// log and ledger differ.
func Run(ctx context.Context, cfg Config) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := &standalone{cfg: cfg, out: console.New(cfg.Out), begin: time.Now()}
	if err := s.openDataDir(ctx); err != nil {
		return err
	}
	if err := s.start(ctx); err != nil {
		if ctx.Err() != nil { // asked to stop meanwhile: no failure
			err = nil
		}
		return s.stack.Abort(err)
	}
	s.out.Say("\nServing after %s.\nAddresses, tokens and passwords: %s (only you can read it)\n",
		console.Took(time.Since(s.begin)), filepath.Join(cfg.DataDir, kept.EnvFile))

	verdict := s.demonstrate(ctx)
	if cfg.Exit {
		cancel()
	} else if ctx.Err() == nil {
		if verdict != nil {
			s.out.Say("✗ %v", verdict)
		}
		// last, so that no traffic pushes it off the screen
		s.out.Say("%s\nServing until Ctrl-C. Logs: %s", tryIt(cfg.DataDir), filepath.Join(cfg.DataDir, "logs"))
		verdict = nil // it has been told; the services go on
	}
	stopped := s.wait(ctx)
	return errors.Join(verdict, stopped)
}

// standalone is one run.
type standalone struct {
	cfg       Config
	out       *console.Console
	stack     *lifecycle.Stack
	kept      *kept.State
	stores    stores.Set
	simulated bool // the inference server is
	begin     time.Time
	asked     time.Time // when the stop began
}

// openDataDir makes the data directory this run's own, and reads what the last one kept.
func (s *standalone) openDataDir(ctx context.Context) error {
	dir := s.cfg.DataDir
	if err := os.MkdirAll(filepath.Join(dir, "logs"), 0o700); err != nil {
		return fmt.Errorf("make the data directory: %w; TOLLGATE_DATA_DIR chooses another", err)
	}
	lock, err := process.Lock(ctx, filepath.Join(dir, "lock"), 0)
	if errors.Is(err, process.ErrLocked) {
		return fmt.Errorf("another standalone uses %s: %w; stop it, or choose another directory with TOLLGATE_DATA_DIR", dir, err)
	}
	if err != nil {
		return fmt.Errorf("lock the data directory: %w", err)
	}
	log, err := s.openLog("standalone")
	if err != nil {
		return errors.Join(err, lock.Close())
	}
	s.stack = lifecycle.New(observe.NewLogger(log, slog.LevelDebug, "standalone", "standalone"))
	s.stack.Defer("data directory", func(context.Context) error { return errors.Join(log.Close(), lock.Close()) })
	if s.kept, err = kept.Load(dir); err != nil {
		return s.stack.Abort(err)
	}
	for _, t := range []struct {
		set  config.Secret
		kept *string
	}{{s.cfg.ServiceToken, &s.kept.ServiceToken}, {s.cfg.AdminToken, &s.kept.AdminToken}, {s.cfg.ViewerToken, &s.kept.ViewerToken}} {
		if t.set != "" {
			*t.kept = t.set.Reveal()
		}
	}
	return nil
}

func (s *standalone) openLog(name string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(s.cfg.DataDir, "logs", name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open a log: %w", err)
	}
	return f, nil
}

// start brings up stores, topics and services, in this order, and writes the env file.
func (s *standalone) start(ctx context.Context) error {
	for _, l := range s.cfg.listeners() {
		if err := checkFree(ctx, l); err != nil {
			return err
		}
	}
	s.out.Say("Tollgate, all in one process. Data in %s", s.cfg.DataDir)
	s.stores = stores.Set{RedisURL: s.cfg.RedisURL, PostgresURL: s.cfg.PostgresURL, KafkaBrokers: s.cfg.KafkaBrokers, ClickHouseURL: s.cfg.ClickHouseURL,
		ClickHouseHTTPURL: s.cfg.ClickHouseHTTPURL, FinanceUser: s.cfg.FinanceUser, FinancePassword: s.cfg.FinancePassword.Reveal()}
	if err := s.stores.Start(ctx, s.cfg.DataDir, s.kept, toldStack{s}, s.out); err != nil {
		return err
	}
	if err := s.kept.Save(s.cfg.DataDir); err != nil {
		return err
	}
	if err := topics.Ensure(ctx, s.stores.KafkaBrokers); err != nil {
		return err
	}
	if err := s.startUpstream(ctx); err != nil {
		return err
	}
	environ := s.environ()
	for _, svc := range s.services() {
		if svc.name == "enforcement" { // before anybody can ask it
			if err := s.restoreBuckets(ctx, environ); err != nil {
				return err
			}
		}
		if err := s.startService(ctx, svc, environ); err != nil {
			return err
		}
	}
	return kept.WriteEnv(s.cfg.DataDir, s.envVars())
}

// checkFree tells which variable moves a listener whose port is taken.
func checkFree(ctx context.Context, l listener) error {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", l.addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		_, port, _ := net.SplitHostPort(l.addr)
		return fmt.Errorf("port %s, where %s should listen, is in use: stop what listens there, or choose another by %s=127.0.0.1:PORT", port, l.name, l.variable)
	}
	if err != nil {
		return fmt.Errorf("%s=%s: %w", l.variable, l.addr, err)
	}
	return ln.Close()
}

// checkBudget is five times the default: here the stores and all services share one machine's cores with whatever else it does.
const checkBudget = "TOLLGATE_CHECK_BUDGET=250ms"

// environ is what the services read: the user's own settings, then where standalone put things.
func (s *standalone) environ() []string {
	return append(append([]string{checkBudget, "TOLLGATE_SPOOL_DIR=" + filepath.Join(s.cfg.DataDir, "spool")}, s.cfg.Environ...),
		"TOLLGATE_REDIS_URL="+s.stores.RedisURL,
		"TOLLGATE_POSTGRES_URL="+s.stores.PostgresURL,
		"TOLLGATE_KAFKA_BROKERS="+strings.Join(s.stores.KafkaBrokers, ","),
		"TOLLGATE_CLICKHOUSE_URL="+s.stores.ClickHouseURL,
		"TOLLGATE_ENFORCEMENT_ADDR="+s.cfg.EnforcementAddr,
		"TOLLGATE_ENFORCEMENT_URL="+baseURL(s.cfg.EnforcementAddr),
		"TOLLGATE_GATEWAY_ADDR="+s.cfg.GatewayAddr,
		"TOLLGATE_UPSTREAM_URL="+s.cfg.UpstreamURL,
		"TOLLGATE_QUOTA_ADDR="+s.cfg.QuotaAddr,
		"TOLLGATE_CONSUMER_ADDR="+s.cfg.ConsumerAddr,
		"TOLLGATE_SERVICE_TOKEN="+s.kept.ServiceToken,
		"TOLLGATE_ADMIN_TOKEN="+s.kept.AdminToken,
		"TOLLGATE_VIEWER_TOKEN="+s.kept.ViewerToken)
}

// envVars is what .tollgate/env promises (DESIGN §10).
func (s *standalone) envVars() []kept.Var {
	return []kept.Var{
		{Name: "TOLLGATE_ENFORCEMENT_URL", Value: baseURL(s.cfg.EnforcementAddr)},
		{Name: "TOLLGATE_QUOTA_URL", Value: baseURL(s.cfg.QuotaAddr)},
		{Name: "TOLLGATE_CONSUMER_URL", Value: baseURL(s.cfg.ConsumerAddr)},
		{Name: "TOLLGATE_GATEWAY_URL", Value: baseURL(s.cfg.GatewayAddr)},
		{Name: "TOLLGATE_UPSTREAM_URL", Value: s.cfg.UpstreamURL},
		{Name: "TOLLGATE_SERVICE_TOKEN", Value: s.kept.ServiceToken},
		{Name: "TOLLGATE_ADMIN_TOKEN", Value: s.kept.AdminToken},
		{Name: "TOLLGATE_VIEWER_TOKEN", Value: s.kept.ViewerToken},
		{Name: "TOLLGATE_REDIS_URL", Value: s.stores.RedisURL},
		{Name: "TOLLGATE_POSTGRES_URL", Value: s.stores.PostgresURL},
		{Name: "TOLLGATE_KAFKA_BROKERS", Value: strings.Join(s.stores.KafkaBrokers, ",")},
		{Name: "TOLLGATE_CLICKHOUSE_URL", Value: s.stores.ClickHouseURL},
		{Name: "TOLLGATE_CLICKHOUSE_HTTP_URL", Value: s.stores.ClickHouseHTTPURL, Comment: "set it beside TOLLGATE_CLICKHOUSE_URL"},
		{Name: "TOLLGATE_FINANCE_USER", Value: s.stores.FinanceUser, Comment: "set it beside TOLLGATE_CLICKHOUSE_URL"},
		{Name: "TOLLGATE_FINANCE_PASSWORD", Value: s.stores.FinancePassword, Comment: "set it beside TOLLGATE_CLICKHOUSE_URL"},
	}
}

// toldStack is the stack, but tells of each stop.
type toldStack struct{ s *standalone }

func (t toldStack) Defer(name string, stop func(context.Context) error) {
	t.s.stack.Defer(name, func(ctx context.Context) error {
		done := t.s.out.Step(name)
		err := stop(ctx)
		if err != nil {
			done("failed to stop: " + err.Error())
			return err
		}
		done("stopped")
		return nil
	})
}

// wait serves until ctx ends or a part fails, then stops everything.
func (s *standalone) wait(ctx context.Context) error {
	s.stack.Defer("words", func(context.Context) error {
		s.asked = time.Now()
		s.out.Say("\nStopping")
		return nil
	})
	err := s.stack.Wait(ctx)
	if err == nil {
		s.out.Say("Stopped in %s. The data stays in %s for the next start.", console.Took(time.Since(s.asked)), s.cfg.DataDir)
	}
	return err
}
