package system

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/config"
	"github.com/tollgate-dev/tollgate/pkg/embedded/process"
	"github.com/tollgate-dev/tollgate/pkg/lifecycle"
	"github.com/tollgate-dev/tollgate/pkg/observe"
	consumer "github.com/tollgate-dev/tollgate/services/consumer/app"
	enforcement "github.com/tollgate-dev/tollgate/services/enforcement/app"
	gateway "github.com/tollgate-dev/tollgate/services/gateway/app"
	quota "github.com/tollgate-dev/tollgate/services/quota/app"
)

// The tokens that the services know.
const (
	ServiceToken = "service-token-of-this-test"
	AdminToken   = "admin-token-of-this-test"
	ViewerToken  = "viewer-token-of-this-test"
	UpstreamKey  = "upstream-key-of-this-test"
	JWTSecret    = "session-secret-of-this-test-of-32-characters"
)

// Stores says where the stores are. The topics must exist. Without a ClickHouse no consumer is started.
type Stores struct {
	RedisURL      string
	PostgresURL   string
	KafkaBrokers  []string
	ClickHouseURL string // native DSN
	SpoolDir      string // of enforcement; none if empty
	UpstreamURL   string // the inference server; without one no gateway is started
}

// Environ is the environment of every service on these stores, but for its address and its instance's name.
func (st Stores) Environ() []string {
	return []string{
		"TOLLGATE_REDIS_URL=" + st.RedisURL, "TOLLGATE_POSTGRES_URL=" + st.PostgresURL, "TOLLGATE_KAFKA_BROKERS=" + strings.Join(st.KafkaBrokers, ","),
		"TOLLGATE_CLICKHOUSE_URL=" + st.ClickHouseURL, "TOLLGATE_SERVICE_TOKEN=" + ServiceToken, "TOLLGATE_ADMIN_TOKEN=" + AdminToken,
		"TOLLGATE_VIEWER_TOKEN=" + ViewerToken, "TOLLGATE_LOG_LEVEL=warn",
		"TOLLGATE_SPOOL_DIR=" + st.SpoolDir,
		"TOLLGATE_UPSTREAM_URL=" + st.UpstreamURL, "TOLLGATE_UPSTREAM_API_KEY=" + UpstreamKey, "TOLLGATE_JWT_SECRET=" + JWTSecret,
		"TOLLGATE_CHECK_BUDGET=2s", // many tests share a machine: slow is not what they test
	}
}

// Names of the services that Run knows.
const (
	Quota       = "quota"
	Consumer    = "consumer"
	Enforcement = "enforcement"
	Gateway     = "gateway"
)

// Run runs one service until ctx ends, as its own main does with this environment.
func Run(ctx context.Context, name string, environ []string, log io.Writer) error {
	switch name {
	case Quota:
		return runQuota(ctx, environ, log)
	case Consumer:
		return runConsumer(ctx, environ, log)
	case Enforcement:
		return runEnforcement(ctx, environ, log)
	case Gateway:
		return runGateway(ctx, environ, log)
	}
	return fmt.Errorf("there is no service %q", name)
}

// System is running services.
type System struct {
	EnforcementURL, QuotaURL, ConsumerURL, GatewayURL string

	stack *lifecycle.Stack
}

const readyWithin = time.Minute

// Start starts quota, consumer, enforcement and gateway on free ports and returns when all are ready. Their logs go to log.
func Start(ctx context.Context, st Stores, log io.Writer) (*System, error) {
	s := &System{stack: lifecycle.New(observe.NewLogger(log, slog.LevelInfo, "system", "e2e"))}
	environ := append(st.Environ(), "TOLLGATE_INSTANCE=e2e")
	for _, svc := range []struct {
		name, addrVar string
		url           *string
		run           func(ctx context.Context, environ []string, log io.Writer) error
	}{
		{Quota, "TOLLGATE_QUOTA_ADDR", &s.QuotaURL, runQuota},
		{Consumer, "TOLLGATE_CONSUMER_ADDR", &s.ConsumerURL, runConsumer},
		{Enforcement, "TOLLGATE_ENFORCEMENT_ADDR", &s.EnforcementURL, runEnforcement},
		{Gateway, "TOLLGATE_GATEWAY_ADDR", &s.GatewayURL, runGateway},
	} {
		if svc.name == Consumer && st.ClickHouseURL == "" || svc.name == Gateway && st.UpstreamURL == "" {
			continue
		}
		port, err := process.FreePort()
		if err != nil {
			return nil, s.stack.Abort(err)
		}
		addr := process.Addr(port)
		*svc.url = "http://" + addr
		ended := make(chan error, 1)
		s.stack.Go(svc.name, func(ctx context.Context) error {
			err := svc.run(ctx, append(environ, svc.addrVar+"="+addr, "TOLLGATE_ENFORCEMENT_URL="+s.EnforcementURL), log)
			ended <- err
			return err
		})
		if err := AwaitReady(ctx, *svc.url, ended); err != nil {
			return nil, s.stack.Abort(fmt.Errorf("start %s: %w", svc.name, err))
		}
	}
	return s, nil
}

// Stop stops the services, last first.
func (s *System) Stop() error { return s.stack.Stop() }

func runQuota(ctx context.Context, environ []string, log io.Writer) error {
	var c quota.Config
	if err := config.Load(environ, &c); err != nil {
		return err
	}
	c.Log = observe.NewLogger(log, c.LogLevel, "quota", c.Instance)
	return quota.Run(ctx, c)
}

func runConsumer(ctx context.Context, environ []string, log io.Writer) error {
	var c consumer.Config
	if err := config.Load(environ, &c); err != nil {
		return err
	}
	c.LogTo = log
	return consumer.Run(ctx, c)
}

func runEnforcement(ctx context.Context, environ []string, log io.Writer) error {
	var c enforcement.Config
	if err := config.Load(environ, &c); err != nil {
		return err
	}
	c.Log = observe.NewLogger(log, c.LogLevel, "enforcement", c.Instance)
	return enforcement.Run(ctx, c)
}

func runGateway(ctx context.Context, environ []string, log io.Writer) error {
	var c gateway.Config
	if err := config.Load(environ, &c); err != nil {
		return err
	}
	c.Log = observe.NewLogger(log, c.LogLevel, "gateway", c.Instance)
	return gateway.Run(ctx, c)
}

// AwaitReady asks base/readyz until it says yes, ended tells that the service has ended, or a minute is over.
func AwaitReady(ctx context.Context, base string, ended <-chan error) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/readyz", nil)
		if err != nil {
			return err
		}
		if resp, err := http.DefaultClient.Do(req); err == nil {
			_ = resp.Body.Close() // only the status counts
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case err := <-ended:
			return errors.Join(errors.New("it ended by itself"), err)
		case <-ctx.Done():
			return fmt.Errorf("not ready after %s", readyWithin)
		case <-tick.C:
		}
	}
}
