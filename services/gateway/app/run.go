package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/tollgate-dev/tollgate/pkg/client"
	"github.com/tollgate-dev/tollgate/pkg/lifecycle"
	"github.com/tollgate-dev/tollgate/pkg/observe"
	"github.com/tollgate-dev/tollgate/pkg/pgquota"
	"github.com/tollgate-dev/tollgate/pkg/redisfence"
	"github.com/tollgate-dev/tollgate/pkg/redisurl"
	"github.com/tollgate-dev/tollgate/services/gateway/internal/dialect"
	"github.com/tollgate-dev/tollgate/services/gateway/internal/identity"
	"github.com/tollgate-dev/tollgate/services/gateway/internal/proxy"
	"github.com/tollgate-dev/tollgate/services/gateway/internal/tokens"
)

// Run serves until ctx ends, then stops in order. It returns nil after an orderly stop. cfg is as config.Load fills it, defaults included.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	log := cfg.Log
	if log == nil {
		log = observe.NewLogger(os.Stderr, cfg.LogLevel, "gateway", cfg.Instance)
	}
	reg := observe.NewRegistry()
	stack := lifecycle.New(log)
	lifecycle.CollectLessOften()

	tracer, err := observe.NewTracer(ctx, cfg.OTLPEndpoint, "gateway", cfg.Instance)
	if err != nil {
		return stack.Abort(err)
	}
	stack.Defer("traces", tracer.Close)

	store, err := pgquota.Open(ctx, cfg.PostgresURL, pgquota.Options{Application: "tollgate-gateway"})
	if err != nil {
		return stack.Abort(err)
	}
	stack.Defer("postgres", func(context.Context) error { store.Close(); return nil })

	rdb, err := openRedis(cfg.RedisURL)
	if err != nil {
		return stack.Abort(err)
	}
	stack.Defer("redis", func(context.Context) error { return rdb.Close() })

	finder, stopSessions, err := newFinder(cfg, store, log)
	if err != nil {
		return stack.Abort(err)
	}
	stack.Defer("sessions", func(context.Context) error { stopSessions(); return nil })
	stack.Go("key changes", func(ctx context.Context) error {
		return redisfence.Subscribe(ctx, rdb, finder.Keys.Drop, finder.Keys.DropAll)
	})

	enforcement := client.NewEnforcement(cfg.EnforcementURL, cfg.ServiceToken.Reveal(), client.WithConnections(cfg.Connections))
	stack.Defer("enforcement client", func(context.Context) error { enforcement.Close(); return nil })
	transport := newTransport(cfg)
	stack.Defer("upstream client", func(context.Context) error { transport.CloseIdleConnections(); return nil })

	health := observe.NewHealth(observe.Check{Name: "postgres", Ask: observe.Once(store.Ping)})
	api, err := newAPI(cfg, finder, enforcement, transport, health, reg, log)
	if err != nil {
		return stack.Abort(err)
	}
	stack.Defer("settlements", api.Wait)
	addr, err := serve(ctx, stack, cfg, log, tracer.Wrap(api))
	if err != nil {
		return stack.Abort(err)
	}
	stack.Defer("readiness", func(context.Context) error { health.SetReady(false); return nil })
	health.SetReady(true)
	log.InfoContext(ctx, "gateway is serving", "addr", addr.String())
	if cfg.Listen != nil {
		cfg.Listen(addr)
	}
	return stack.Wait(ctx)
}

func newFinder(cfg Config, store *pgquota.Store, log *slog.Logger) (identity.Finder, func(), error) {
	f := identity.Finder{Keys: identity.NewKeys(store, nil)}
	key, err := cfg.publicKey()
	if err != nil {
		return f, nil, err
	}
	if cfg.JWTSecret == "" && key == nil && cfg.JWKSURL == "" {
		return f, func() {}, nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	f.Sessions, err = identity.NewSessions(ctx, identity.SessionOptions{Secret: []byte(cfg.JWTSecret.Reveal()), PublicKey: key, JWKS: cfg.JWKSURL,
		Issuer: cfg.JWTIssuer, Audience: cfg.JWTAudience, UserClaim: cfg.JWTUserClaim, Leeway: cfg.JWTLeeway, Log: log})
	if err != nil {
		cancel()
		return f, nil, err
	}
	return f, cancel, nil
}

func newAPI(cfg Config, finder identity.Finder, enforcement *client.Enforcement, transport http.RoundTripper, health *observe.Health, reg *prometheus.Registry,
	log *slog.Logger) (*proxy.Server, error) {
	upstream, err := cfg.upstream()
	if err != nil {
		return nil, err
	}
	most, err := cfg.maxOutput()
	if err != nil {
		return nil, err
	}
	encodings, errs := tokens.ParseEncodings(cfg.Encodings)
	counter, err := tokens.New(encodings)
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, err
	}
	wording, err := dialect.Parse(cfg.Dialect)
	if err != nil {
		return nil, err
	}
	return proxy.New(proxy.Options{Identities: finder, Enforcement: enforcement, Counter: counter, Dialect: wording, Upstream: upstream,
		UpstreamKey: cfg.UpstreamKey.Reveal(), Transport: transport, ForwardHeaders: cfg.ForwardHeaders, Models: cfg.Models, MaxOutput: most,
		Predicted: cfg.Predicted, MaxBody: cfg.MaxBody, MaxBodies: cfg.MaxBodies, HeaderWait: cfg.UpstreamWait, IdleWait: cfg.UpstreamIdle,
		Stall: cfg.ClientStall, Health: health, Registry: reg, Log: log}), nil
}

// newTransport keeps connections; net/http's default of two idle ones would open a new one for nearly every request. It sets no time for the
// header: package proxy does.
func newTransport(cfg Config) *http.Transport {
	return &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		MaxIdleConns:        cfg.Connections,
		MaxIdleConnsPerHost: cfg.Connections,
		IdleConnTimeout:     90 * time.Second,
		TLSHandshakeTimeout: 5 * time.Second,
		DisableCompression:  true, // an answer's coding is package proxy's matter
		ForceAttemptHTTP2:   true,
	}
}

// openRedis makes a client for the announcements.
func openRedis(url string) (redis.UniversalClient, error) {
	o, err := redisurl.Options(url)
	if err != nil {
		return nil, errors.New("TOLLGATE_REDIS_URL can't be read") // the error may hold the password
	}
	o.ClientName = "tollgate-gateway"
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout = time.Second, 2*time.Second, 2*time.Second
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return redis.NewUniversalClient(o), nil
}

// serve starts the HTTP server, HTTP/1.1 and HTTP/2 (without TLS too: that ends before us). Its stop takes no new connections, waits for the
// requests being served, and breaks off those that last longer than cfg.Drain.
func serve(ctx context.Context, stack *lifecycle.Stack, cfg Config, log *slog.Logger, api http.Handler) (net.Addr, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", cfg.Addr)
	if err != nil {
		return nil, fmt.Errorf("listen for the API: %w", err)
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	// Bodies of 20 MiB and answers of minutes take their time: package proxy bounds each of its waits instead.
	srv := &http.Server{Handler: api, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 32 << 10,
		Protocols: protocols, HTTP2: http2Limits(), ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	stack.Go("http server", func(ctx context.Context) error {
		failed := make(chan error, 1)
		go func() { failed <- srv.Serve(l) }()
		select {
		case err := <-failed:
			return err
		case <-ctx.Done():
		}
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), cfg.Drain)
		defer cancel()
		err := srv.Shutdown(stop)
		if errors.Is(err, context.DeadlineExceeded) {
			log.WarnContext(ctx, "breaking off requests that last longer than the stop may take")
			err = srv.Close()
		}
		if e := <-failed; !errors.Is(e, http.ErrServerClosed) {
			err = errors.Join(err, e)
		}
		return err
	})
	return l.Addr(), nil
}

// http2Limits bounds what one HTTP/2 connection may hold: streams, their headers, and what is on its way to us unread. A peer that is gone without a
// word is found by a ping.
func http2Limits() *http.HTTP2Config {
	return &http.HTTP2Config{MaxConcurrentStreams: 250, MaxReceiveBufferPerConnection: 4 << 20, MaxReceiveBufferPerStream: 1 << 20,
		SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second, WriteByteTimeout: 2 * time.Minute}
}
