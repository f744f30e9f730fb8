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

	"github.com/tollgate-dev/tollgate/pkg/auth"
	"github.com/tollgate-dev/tollgate/pkg/lifecycle"
	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/observe"
	"github.com/tollgate-dev/tollgate/pkg/pgquota"
	"github.com/tollgate-dev/tollgate/pkg/redisfence"
	"github.com/tollgate-dev/tollgate/pkg/redisurl"
	"github.com/tollgate-dev/tollgate/services/enforcement/internal/boltspool"
	"github.com/tollgate-dev/tollgate/services/enforcement/internal/decide"
	"github.com/tollgate-dev/tollgate/services/enforcement/internal/fallback"
	"github.com/tollgate-dev/tollgate/services/enforcement/internal/httpapi"
	"github.com/tollgate-dev/tollgate/services/enforcement/internal/httppeer"
	"github.com/tollgate-dev/tollgate/services/enforcement/internal/kafkausage"
	"github.com/tollgate-dev/tollgate/services/enforcement/internal/quotacache"
	"github.com/tollgate-dev/tollgate/services/enforcement/internal/redisbucket"
	"github.com/tollgate-dev/tollgate/services/enforcement/internal/redisinstances"
	"github.com/tollgate-dev/tollgate/services/enforcement/internal/redisload"
)

// The seams and what fills them.
var (
	_ decide.Quotas     = (*quotacache.Cache)(nil)
	_ decide.Events     = (*kafkausage.Emitter)(nil)
	_ decide.Ends       = (*fallback.Limiter)(nil)
	_ fallback.Store    = store{}
	_ fallback.Peers    = (*httppeer.Client)(nil)
	_ limit.Lender      = (*redisbucket.Limiter)(nil)
	_ quotacache.Loader = decide.Carrying{}
	_ decide.Load       = (*redisload.Loads)(nil)
	_ decide.Plans      = (*pgquota.Store)(nil)
	_ kafkausage.Spool  = (*boltspool.Spool)(nil)
)

// Run serves until ctx ends, then stops in order. It returns nil after an orderly stop.
func Run(ctx context.Context, cfg Config) error {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return err
	}
	log := cfg.Log
	if log == nil {
		log = observe.NewLogger(os.Stderr, cfg.LogLevel, "enforcement", cfg.Instance)
	}
	reg := observe.NewRegistry()
	stack := lifecycle.New(log)
	lifecycle.CollectLessOften()

	tracer, err := observe.NewTracer(ctx, cfg.OTLPEndpoint, "enforcement", cfg.Instance)
	if err != nil {
		return stack.Abort(err)
	}
	stack.Defer("traces", tracer.Close)

	quotas, err := pgquota.Open(ctx, cfg.PostgresURL, pgquota.Options{Application: "tollgate-enforcement"})
	if err != nil {
		return stack.Abort(err)
	}
	stack.Defer("postgres", func(context.Context) error { quotas.Close(); return nil })

	rdb, err := openRedis(cfg.RedisURL)
	if err != nil {
		return stack.Abort(err)
	}
	stack.Defer("redis", func(context.Context) error { return rdb.Close() })

	emit := kafkausage.Options{Brokers: cfg.KafkaBrokers, Registry: reg, Log: log}
	if cfg.SpoolDir != "" {
		spool, err := boltspool.Open(cfg.SpoolDir, boltspool.Options{MaxBytes: cfg.SpoolMax, Registry: reg})
		if err != nil {
			return stack.Abort(fmt.Errorf("TOLLGATE_SPOOL_DIR: %w", err))
		}
		stack.Defer("spool", func(context.Context) error { return spool.Close() })
		emit.Spool = spool
	}
	events := kafkausage.New(emit)
	stack.Defer("kafka", events.Close)
	stack.Defer("rejections", events.Flush)

	buckets := redisbucket.New(rdb, redisbucket.Options{Tombstone: cfg.Tombstone})
	if err := load(ctx, buckets); err != nil {
		log.WarnContext(ctx, "redis is not there yet; its scripts are loaded at their first use", "err", err)
	}
	var cache *quotacache.Cache
	peers := httppeer.New(cfg.ServiceToken.Reveal())
	stack.Defer("instances", func(context.Context) error { peers.Close(); return nil })
	live := instances{redisinstances.New(rdb, cfg.Instance)}
	limiter := fallback.New(store{limit.Spreader{Lender: buckets}, buckets}, live, fallback.Options{Share: cfg.CheckBudget / 2,
		Most: cfg.AwayRequests, Peers: peers, Back: func() { cache.DropAll() }, Registry: reg, Log: log})
	cache = quotacache.New(decide.Carrying{Plans: quotas, Carrier: limiter}, quotacache.Options{Registry: reg})
	stack.Defer("quota cache", func(context.Context) error { cache.Close(); return nil })
	stack.Go("quota changes", func(ctx context.Context) error {
		return redisfence.Subscribe(ctx, rdb, cache.Drop, cache.DropAll)
	})
	stack.Go("limiter", limiter.Run)

	fallbacks, groups, _ := cfg.models() // valid
	loads := redisload.New(rdb, redisload.Options{Groups: groups, Models: cfg.Models, Registry: reg, Log: log})
	stack.Go("load", loads.Run)

	engine := decide.New(cache, limiter, events, decide.Options{Lease: cfg.Lease, Budget: cfg.CheckBudget, Load: loads, Fallback: fallbacks,
		Region: cfg.Region, Instance: cfg.Instance, Log: log})

	stack.Go("ended reservations", func(ctx context.Context) error { return emitEnds(ctx, engine, limiter, log) })

	health := observe.NewHealth(observe.Check{Name: "postgres", Ask: observe.Once(quotas.Ping)})
	addr, err := serve(ctx, stack, cfg.Addr, log, tracer.Wrap(newAPI(cfg, engine, limiter, loads, health, reg, log)))
	if err != nil {
		return stack.Abort(err)
	}
	stack.Defer("readiness", func(context.Context) error { health.SetReady(false); return nil })
	if at := advertised(ctx, cfg, addr); at != "" {
		live.Announce(at)
	} else {
		log.WarnContext(ctx, "other instances can't ask this one while redis is away: set TOLLGATE_ADVERTISE_ADDR")
	}
	health.SetReady(true)
	log.InfoContext(ctx, "enforcement is serving", "addr", addr.String(), "region", cfg.Region)
	if cfg.Listen != nil {
		cfg.Listen(addr)
	}
	return stack.Wait(ctx)
}

func newAPI(cfg Config, engine *decide.Engine, limiter *fallback.Limiter, loads httpapi.Loads, health *observe.Health, reg *prometheus.Registry, log *slog.Logger) http.Handler {
	service := cfg.ServiceToken.Reveal()
	tokens := auth.Tokens{auth.NewGrant("service", auth.Service, service), auth.NewGrant("another instance", auth.Instance, httppeer.Token(service))}
	if cfg.AdminToken != "" {
		tokens = append(tokens, auth.NewGrant("admin", auth.Admin, cfg.AdminToken.Reveal()))
	}
	peer := func(w http.ResponseWriter, r *http.Request) error { return httppeer.Handle(limiter, w, r) }
	return httpapi.New(httpapi.Options{Engine: engine, Loads: loads, Peer: peer, PeerPath: httppeer.Path, Health: health, Registry: reg, Log: log,
		Models: cfg.Models, Tokens: tokens})
}

// emitEnds looks for reservations that have ended without an event until ctx ends. Failures pass: what is due is offered again.
func emitEnds(ctx context.Context, engine *decide.Engine, ends decide.Ends, log *slog.Logger) error {
	tick := time.NewTicker(decide.EndsEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		pass, cancel := context.WithTimeout(ctx, limit.EmitGrace)
		n, err := engine.EmitEnds(pass, ends)
		cancel()
		switch {
		case err != nil && ctx.Err() == nil:
			log.WarnContext(ctx, "events of ended reservations are not durable yet; trying again", "emitted", n, "err", err)
		case n > 0:
			log.InfoContext(ctx, "emitted the events of ended reservations", "emitted", n)
		}
	}
}

// instances counts the live instances for the limiter.
type instances struct{ *redisinstances.Instances }

// Beat implements fallback.Instances.
func (i instances) Beat(ctx context.Context) (fallback.Live, error) {
	n, others, err := i.Instances.Beat(ctx)
	return fallback.Live{Count: n, Others: others}, err
}

// advertised is where the other instances can ask this one: as configured, else where it listens, and if that is on all interfaces, on the one that leads to
// Redis. "": there is no way to Redis.
func advertised(ctx context.Context, cfg Config, listening net.Addr) string {
	if cfg.AdvertiseAddr != "" {
		return cfg.AdvertiseAddr
	}
	host, port, err := net.SplitHostPort(listening.String())
	if err != nil {
		return ""
	}
	if ip := net.ParseIP(host); ip != nil && !ip.IsUnspecified() {
		return listening.String()
	}
	o, err := redisurl.Options(cfg.RedisURL)
	if err != nil || len(o.Addrs) == 0 {
		return ""
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "udp", o.Addrs[0]) // sends nothing
	if err != nil {
		return ""
	}
	defer conn.Close()
	if host, _, err = net.SplitHostPort(conn.LocalAddr().String()); err != nil {
		return ""
	}
	return net.JoinHostPort(host, port)
}

// store is the limiter on Redis, for payers of any size.
type store struct {
	limit.Spreader
	buckets *redisbucket.Limiter
}

func (s store) DueShards(ctx context.Context) ([]int, error) { return s.buckets.DueShards(ctx) }

func (s store) Carry(ctx context.Context, r limit.CarryRequest) error { return s.buckets.Carry(ctx, r) }

func (s store) Carried(ctx context.Context, rs []limit.CarryRequest) ([]bool, error) {
	return s.buckets.Carried(ctx, rs)
}

// load may take its time, but doesn't hold up the start for a Redis that doesn't answer.
func load(ctx context.Context, buckets *redisbucket.Limiter) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return buckets.Load(ctx)
}

// maxIdle is short, so that an outage leaves no pool full of dead connections, of which each would cost a call its time.
const maxIdle = 5 * time.Second

// abortive has a connection drop, when it is closed, what it has not sent yet: what its caller has given up must not reach Redis later,
// when the network is back.
func abortive(conn net.Conn) net.Conn {
	raw := conn
	if t, ok := conn.(interface{ NetConn() net.Conn }); ok { // TLS
		raw = t.NetConn()
	}
	if t, ok := raw.(*net.TCPConn); ok {
		_ = t.SetLinger(0) // it stays as it was if this fails
	}
	return conn
}

// openRedis makes a client of one server or of a cluster.
func openRedis(url string) (redis.UniversalClient, error) {
	o, err := redisurl.Options(url)
	if err != nil {
		return nil, errors.New("TOLLGATE_REDIS_URL can't be read") // the error may hold the password
	}
	o.ClientName = "tollgate-enforcement"
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout = time.Second, 2*time.Second, 2*time.Second
	o.DialerRetries = 1
	o.MaxRetries = -1 // none: a call whose answer was lost may have been executed, and not every one may be twice; who asked decides what then
	o.PoolSize = 64
	o.ConnMaxIdleTime = maxIdle
	dial := redis.NewDialer(&redis.Options{DialTimeout: o.DialTimeout, TLSConfig: o.TLSConfig})
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		return abortive(conn), err
	}
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return redis.NewUniversalClient(o), nil
}

// serve starts the HTTP server. Its stop takes no new connections and waits for the requests being served.
func serve(ctx context.Context, stack *lifecycle.Stack, addr string, log *slog.Logger, api http.Handler) (net.Addr, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen for the API: %w", err)
	}
	srv := &http.Server{Handler: api, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 15 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 32 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	stack.Go("http server", func(ctx context.Context) error {
		failed := make(chan error, 1)
		go func() { failed <- srv.Serve(l) }()
		select {
		case err := <-failed:
			return err
		case <-ctx.Done():
		}
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
		defer cancel()
		err := srv.Shutdown(stop)
		if e := <-failed; !errors.Is(e, http.ErrServerClosed) {
			err = errors.Join(err, e)
		}
		return err
	})
	return l.Addr(), nil
}

// drain is how long the requests being served may take at the stop: longer than a record waits for Kafka, and short enough to leave
// the rest of the stop its share of lifecycle.Grace.
const drain = 15 * time.Second
