package app

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/config"
	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/redisurl"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/services/enforcement/internal/shed"
)

// Config is every setting of the service. The variables are read by pkg/config; the fields without one are for those who call Run.
type Config struct {
	Addr          string        `env:"TOLLGATE_ENFORCEMENT_ADDR" envDefault:":8081"`
	AdvertiseAddr string        `env:"TOLLGATE_ADVERTISE_ADDR"` // where other instances reach this one; found out if empty
	RedisURL      string        `env:"TOLLGATE_REDIS_URL,required"`
	PostgresURL   string        `env:"TOLLGATE_POSTGRES_URL,required"`
	KafkaBrokers  []string      `env:"TOLLGATE_KAFKA_BROKERS,required"`
	ServiceToken  config.Secret `env:"TOLLGATE_SERVICE_TOKEN,required"`
	AdminToken    config.Secret `env:"TOLLGATE_ADMIN_TOKEN"` // who may correct usage; nobody if empty
	Region        string        `env:"TOLLGATE_REGION"`
	Instance      string        `env:"TOLLGATE_INSTANCE"` // the host's name and a random part if empty
	LogLevel      slog.Level    `env:"TOLLGATE_LOG_LEVEL" envDefault:"INFO"`
	Models        []string      `env:"TOLLGATE_MODELS" envDefault:"grok-2,grok-2-mini,grok-4"` // names that may be metric labels
	Fallback      []string      `env:"TOLLGATE_MODEL_FALLBACK"`                                // large:small, or none; if empty defaultFallback, for models that are known
	ModelGroups   []string      `env:"TOLLGATE_MODEL_GROUPS"`                                  // model:group, of those that share their load
	Lease         time.Duration `env:"TOLLGATE_LEASE" envDefault:"600s"`
	Tombstone     time.Duration `env:"TOLLGATE_TOMBSTONE" envDefault:"10m"`
	CheckBudget   time.Duration `env:"TOLLGATE_CHECK_BUDGET" envDefault:"50ms"`
	AwayRequests  int           `env:"TOLLGATE_AWAY_REQUESTS" envDefault:"250000"` // kept for a Redis that is away
	SpoolDir      string        `env:"TOLLGATE_SPOOL_DIR"`                         // where usage events wait for a Kafka that is away; nowhere if empty
	SpoolMax      int64         `env:"TOLLGATE_SPOOL_MAX_BYTES" envDefault:"1073741824"`

	OTLPEndpoint string `env:"OTEL_EXPORTER_OTLP_ENDPOINT"` // where traces go; none if empty

	Log    *slog.Logger        // JSON on standard error if nil
	Listen func(addr net.Addr) // called when the API is being served; may be nil
}

var _ config.Service = (*Config)(nil)

// ListenAddr implements config.Service.
func (c *Config) ListenAddr() string { return c.Addr }

// Validate implements config.Validator. What is required and missing, pkg/config has said already.
func (c *Config) Validate() error {
	var errs []error
	bad := func(name, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %s", name, fmt.Sprintf(format, args...)))
	}
	if _, _, err := net.SplitHostPort(c.Addr); err != nil {
		bad("TOLLGATE_ENFORCEMENT_ADDR", "must be host:port or :port")
	}
	if c.AdvertiseAddr != "" {
		if host, _, err := net.SplitHostPort(c.AdvertiseAddr); err != nil || host == "" || strings.ContainsAny(c.AdvertiseAddr, " /") {
			bad("TOLLGATE_ADVERTISE_ADDR", "must be host:port")
		}
	}
	if c.RedisURL != "" {
		if _, err := redisurl.Options(c.RedisURL); err != nil {
			bad("TOLLGATE_REDIS_URL", "must be redis://[user:password@]host:port/db, or for a cluster …host:port?addr=host:port&addr=…; rediss:// for TLS") // the error may hold the password
		}
	}
	if c.PostgresURL != "" && !strings.HasPrefix(c.PostgresURL, "postgres://") && !strings.HasPrefix(c.PostgresURL, "postgresql://") {
		bad("TOLLGATE_POSTGRES_URL", "must be postgres://user:password@host:port/database")
	}
	for _, b := range c.KafkaBrokers {
		if _, _, err := net.SplitHostPort(b); err != nil {
			bad("TOLLGATE_KAFKA_BROKERS", "%q must be host:port", b)
		}
	}
	for _, f := range []struct {
		name  string
		token config.Secret
	}{{"TOLLGATE_SERVICE_TOKEN", c.ServiceToken}, {"TOLLGATE_ADMIN_TOKEN", c.AdminToken}} {
		if n := len(f.token.Reveal()); n > 0 && n < 8 {
			bad(f.name, "must have at least 8 characters")
		}
	}
	if c.AdminToken != "" && c.AdminToken == c.ServiceToken {
		bad("TOLLGATE_ADMIN_TOKEN", "must be another one than TOLLGATE_SERVICE_TOKEN")
	}
	for _, f := range []struct{ name, v string }{{"TOLLGATE_REGION", c.Region}, {"TOLLGATE_INSTANCE", c.Instance}} {
		if f.v != "" && subject.ValidateID(f.v) != nil {
			bad(f.name, "must be at most 128 letters, digits and . _ @ / + -")
		}
	}
	for _, m := range c.Models {
		if err := subject.ValidateID(m); err != nil {
			bad("TOLLGATE_MODELS", "%q: %v", m, err)
		}
	}
	_, _, faults := c.models()
	errs = append(errs, faults...)
	for _, f := range []struct {
		name     string
		v        time.Duration
		min, max time.Duration
	}{
		{"TOLLGATE_LEASE", c.Lease, time.Second, limit.MaxWindow},
		{"TOLLGATE_TOMBSTONE", c.Tombstone, time.Second, 30 * 24 * time.Hour},
		{"TOLLGATE_CHECK_BUDGET", c.CheckBudget, time.Millisecond, time.Minute},
	} {
		if f.v < f.min || f.v > f.max {
			bad(f.name, "must be from %s to %s, is %s", f.min, f.max, f.v)
		}
	}
	if c.AwayRequests < 100 || c.AwayRequests > 100_000_000 {
		bad("TOLLGATE_AWAY_REQUESTS", "must be from 100 to 100000000, is %d", c.AwayRequests)
	}
	if c.SpoolMax < minSpool || c.SpoolMax > maxSpool {
		bad("TOLLGATE_SPOOL_MAX_BYTES", "must be from %d to %d, is %d", minSpool, maxSpool, c.SpoolMax)
	}
	if info, err := os.Stat(c.SpoolDir); c.SpoolDir != "" && err == nil && !info.IsDir() {
		bad("TOLLGATE_SPOOL_DIR", "%s must be a directory", c.SpoolDir)
	}
	return errors.Join(errs...)
}

// noFallback, alone, is TOLLGATE_MODEL_FALLBACK for who wants none.
const noFallback = "none"

var defaultFallback = []string{"grok-4:grok-2-mini", "grok-2:grok-2-mini"}

// models gives the rules for models under load, and every fault in their settings.
func (c *Config) models() (shed.Fallbacks, shed.Groups, []error) {
	pairs := c.Fallback
	switch {
	case len(pairs) == 1 && pairs[0] == noFallback:
		pairs = nil
	case len(pairs) == 0:
		pairs = slices.DeleteFunc(slices.Clone(defaultFallback), func(pair string) bool {
			large, small, _ := strings.Cut(pair, ":")
			return !slices.Contains(c.Models, large) || !slices.Contains(c.Models, small)
		})
	}
	var errs []error
	fallbacks, wrong := shed.ParseFallbacks(pairs, c.Models)
	for _, err := range wrong {
		errs = append(errs, fmt.Errorf("TOLLGATE_MODEL_FALLBACK: %w", err))
	}
	groups, wrong := shed.ParseGroups(c.ModelGroups, c.Models)
	for _, err := range wrong {
		errs = append(errs, fmt.Errorf("TOLLGATE_MODEL_GROUPS: %w", err))
	}
	return fallbacks, groups, errs
}

const (
	minSpool = 1 << 20
	maxSpool = 1 << 40
)

// withDefaults fills in what a caller of Run may leave empty; the environment's defaults are the same.
func (c Config) withDefaults() Config {
	if c.Addr == "" {
		c.Addr = ":8081"
	}
	if c.Models == nil {
		c.Models = []string{"grok-2", "grok-2-mini", "grok-4"}
	}
	if c.Lease == 0 {
		c.Lease = limit.DefaultLease
	}
	if c.Tombstone == 0 {
		c.Tombstone = limit.DefaultTombstone
	}
	if c.CheckBudget == 0 {
		c.CheckBudget = 50 * time.Millisecond
	}
	if c.AwayRequests == 0 {
		c.AwayRequests = 250_000
	}
	if c.SpoolMax == 0 {
		c.SpoolMax = 1 << 30
	}
	if c.Instance == "" {
		c.Instance = instanceName()
	}
	return c
}

// instanceName tells two instances on one host apart, and one instance before and after a restart.
func instanceName() string {
	host, err := os.Hostname()
	if err != nil || subject.ValidateID(host) != nil {
		host = "host"
	}
	return host[:min(len(host), 100)] + "-" + strings.ToLower(rand.Text()[:8])
}
