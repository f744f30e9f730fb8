package app

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tollgate-dev/tollgate/pkg/auth"
	"github.com/tollgate-dev/tollgate/pkg/config"
	"github.com/tollgate-dev/tollgate/pkg/redisurl"
	"github.com/tollgate-dev/tollgate/services/quota/internal/attempts"
)

// Config is what the service needs to know. The fields without a variable are for those who start it inside another process.
type Config struct {
	Addr         string        `env:"TOLLGATE_QUOTA_ADDR" envDefault:":8082"`
	PostgresURL  string        `env:"TOLLGATE_POSTGRES_URL,required"`
	RedisURL     string        `env:"TOLLGATE_REDIS_URL,required"`
	KafkaBrokers []string      `env:"TOLLGATE_KAFKA_BROKERS,required"`
	AdminToken   config.Secret `env:"TOLLGATE_ADMIN_TOKEN,required"`
	ViewerToken  config.Secret `env:"TOLLGATE_VIEWER_TOKEN"`
	ServiceToken config.Secret `env:"TOLLGATE_SERVICE_TOKEN"` // known only to be refused with 403 instead of 401
	// Networks whose X-Forwarded-For tells where a call comes from; none if empty: then whoever opens the connection counts.
	TrustedProxies []string   `env:"TOLLGATE_TRUSTED_PROXIES"`
	LogLevel       slog.Level `env:"TOLLGATE_LOG_LEVEL" envDefault:"info"`
	OTLPEndpoint   string     `env:"OTEL_EXPORTER_OTLP_ENDPOINT"` // where traces go; none if empty
	Instance       string     `env:"TOLLGATE_INSTANCE" envDefault:"quota-0"`

	// How many tokens an address may try without success, and after how long one more.
	AttemptBurst int           `env:"TOLLGATE_ATTEMPT_BURST" envDefault:"20"`
	AttemptEvery time.Duration `env:"TOLLGATE_ATTEMPT_EVERY" envDefault:"1s"`

	Listener net.Listener `env:"-"` // nil: listen on Addr
	Log      *slog.Logger `env:"-"` // nil: JSON on standard output
}

// ListenAddr implements config.Service.
func (c *Config) ListenAddr() string { return c.Addr }

// Validate implements config.Validator.
func (c *Config) Validate() error {
	var errs []error
	bad := func(name string, err error) { errs = append(errs, fmt.Errorf("%s: %w", name, err)) }
	if _, _, err := net.SplitHostPort(c.Addr); err != nil {
		bad("TOLLGATE_QUOTA_ADDR", err)
	}
	if c.PostgresURL != "" {
		if _, err := pgxpool.ParseConfig(c.PostgresURL); err != nil {
			bad("TOLLGATE_POSTGRES_URL", errors.New("is not a Postgres connection string")) // the parser's own text may quote the password
		}
	}
	if c.RedisURL != "" {
		if _, err := redisurl.Options(c.RedisURL); err != nil {
			bad("TOLLGATE_REDIS_URL", errors.New("is not a redis:// or rediss:// URL"))
		}
	}
	for _, b := range c.KafkaBrokers {
		if _, _, err := net.SplitHostPort(b); err != nil {
			bad("TOLLGATE_KAFKA_BROKERS", err)
		}
	}
	if _, err := attempts.ParseProxies(c.TrustedProxies); err != nil {
		bad("TOLLGATE_TRUSTED_PROXIES", err)
	}
	if c.AttemptBurst < 1 {
		bad("TOLLGATE_ATTEMPT_BURST", errors.New("must be at least 1"))
	}
	if c.AttemptEvery < time.Millisecond {
		bad("TOLLGATE_ATTEMPT_EVERY", errors.New("must be at least 1ms"))
	}
	known := map[config.Secret]string{}
	for _, t := range []struct {
		name  string
		token config.Secret
	}{{"TOLLGATE_ADMIN_TOKEN", c.AdminToken}, {"TOLLGATE_VIEWER_TOKEN", c.ViewerToken}, {"TOLLGATE_SERVICE_TOKEN", c.ServiceToken}} {
		switch other := known[t.token]; {
		case t.token == "":
			continue
		case len(t.token) < 16:
			bad(t.name, errors.New("must have at least 16 characters"))
		case strings.ContainsAny(t.token.Reveal(), " \t\r\n"):
			bad(t.name, errors.New("must hold no spaces"))
		case other != "":
			bad(t.name, fmt.Errorf("is the same as %s: whose right would hold?", other))
		}
		known[t.token] = t.name
	}
	return errors.Join(errs...)
}

// tokens are the bearers the API knows, by the names that the history of changes shows.
func (c *Config) tokens() auth.Tokens {
	var ts auth.Tokens
	for _, t := range []struct {
		name  string
		role  auth.Role
		token config.Secret
	}{{"admin", auth.Admin, c.AdminToken}, {"viewer", auth.Viewer, c.ViewerToken}, {"service", auth.Service, c.ServiceToken}} {
		if t.token != "" {
			ts = append(ts, auth.NewGrant(t.name, t.role, t.token.Reveal()))
		}
	}
	return ts
}
