package app

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/config"
	"github.com/tollgate-dev/tollgate/pkg/observe"
	consumer "github.com/tollgate-dev/tollgate/services/consumer/app"
	enforcement "github.com/tollgate-dev/tollgate/services/enforcement/app"
	gateway "github.com/tollgate-dev/tollgate/services/gateway/app"
	quota "github.com/tollgate-dev/tollgate/services/quota/app"
	"github.com/tollgate-dev/tollgate/services/standalone/internal/console"
)

// service is one of Tollgate's services. It is configured by the environment, as it is when it runs alone.
type service struct {
	name string
	addr string
	run  func(ctx context.Context, environ []string, log io.Writer) error
}

// services are in the order of their start: quota migrates Postgres, which enforcement reads; consumer migrates ClickHouse.
func (s *standalone) services() []service {
	return []service{
		{"quota", s.cfg.QuotaAddr, func(ctx context.Context, environ []string, log io.Writer) error {
			var c quota.Config
			if err := config.Load(environ, &c); err != nil {
				return err
			}
			c.Log = observe.NewLogger(log, c.LogLevel, "quota", c.Instance)
			return quota.Run(ctx, c)
		}},
		{"consumer", s.cfg.ConsumerAddr, func(ctx context.Context, environ []string, log io.Writer) error {
			var c consumer.Config
			if err := config.Load(environ, &c); err != nil {
				return err
			}
			c.LogTo = log
			return consumer.Run(ctx, c)
		}},
		{"enforcement", s.cfg.EnforcementAddr, func(ctx context.Context, environ []string, log io.Writer) error {
			var c enforcement.Config
			if err := config.Load(environ, &c); err != nil {
				return err
			}
			c.Instance = cmp.Or(c.Instance, "standalone")
			c.Log = observe.NewLogger(log, c.LogLevel, "enforcement", c.Instance)
			return enforcement.Run(ctx, c)
		}},
		{"gateway", s.cfg.GatewayAddr, func(ctx context.Context, environ []string, log io.Writer) error {
			var c gateway.Config
			if err := config.Load(environ, &c); err != nil {
				return err
			}
			c.Log = observe.NewLogger(log, c.LogLevel, "gateway", c.Instance)
			return gateway.Run(ctx, c)
		}},
	}
}

// readyWithin is how long a service may take to be ready on stores that are.
const readyWithin = time.Minute

// startService starts a service and waits until it is ready.
func (s *standalone) startService(ctx context.Context, svc service, environ []string) error {
	done := s.out.Step(svc.name)
	log, err := s.openLog(svc.name)
	if err != nil {
		return err
	}
	s.stack.Defer(svc.name+" log", func(context.Context) error { return log.Close() })
	var begin time.Time
	s.stack.Defer(svc.name+" words", func(context.Context) error { // runs once the service has stopped
		s.out.Say("  %-12s %-55s %8s", svc.name, "stopped", console.Took(time.Since(begin)))
		return nil
	})
	failed := make(chan error, 1)
	s.stack.Go(svc.name, func(ctx context.Context) error {
		err := svc.run(ctx, environ, log)
		failed <- err
		return err
	})
	s.stack.Defer(svc.name+" begins to stop", func(context.Context) error { begin = time.Now(); return nil })
	if err := awaitReady(ctx, baseURL(svc.addr), failed); err != nil {
		return fmt.Errorf("start %s: %w; its log is %s", svc.name, err, log.Name())
	}
	done(baseURL(svc.addr))
	return nil
}

// awaitReady asks /readyz until it says yes, the service ends, or time is up.
func awaitReady(ctx context.Context, base string, failed <-chan error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyWithin, fmt.Errorf("not ready after %s", readyWithin))
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	last := "no answer"
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
			last = resp.Status
		}
		select {
		case err := <-failed:
			if err == nil {
				err = fmt.Errorf("it ended by itself")
			}
			return err
		case <-ctx.Done():
			return fmt.Errorf("%w (%s)", context.Cause(ctx), last)
		case <-tick.C:
		}
	}
}
