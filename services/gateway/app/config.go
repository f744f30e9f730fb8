package app

import (
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/config"
	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/pkg/redisurl"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/services/gateway/internal/dialect"
	"github.com/tollgate-dev/tollgate/services/gateway/internal/proxy"
	"github.com/tollgate-dev/tollgate/services/gateway/internal/tokens"
)

// Config is every setting of the service. The variables are read by pkg/config; the fields without one are for those who call Run.
type Config struct {
	Addr           string        `env:"TOLLGATE_GATEWAY_ADDR" envDefault:":8080"`
	EnforcementURL string        `env:"TOLLGATE_ENFORCEMENT_URL,required"`
	ServiceToken   config.Secret `env:"TOLLGATE_SERVICE_TOKEN,required"`
	RedisURL       string        `env:"TOLLGATE_REDIS_URL,required"`
	PostgresURL    string        `env:"TOLLGATE_POSTGRES_URL,required"`
	UpstreamURL    string        `env:"TOLLGATE_UPSTREAM_URL,required"` // with or without /v1
	UpstreamKey    config.Secret `env:"TOLLGATE_UPSTREAM_API_KEY"`      // sent to it as a bearer token
	ForwardHeaders []string      `env:"TOLLGATE_UPSTREAM_FORWARD_HEADERS"`

	JWTSecret    config.Secret `env:"TOLLGATE_JWT_SECRET"`     // HS256
	JWTPublicKey string        `env:"TOLLGATE_JWT_PUBLIC_KEY"` // RS256; PEM, line breaks may be written \n
	JWKSURL      string        `env:"TOLLGATE_JWT_JWKS_URL"`
	JWTIssuer    string        `env:"TOLLGATE_JWT_ISSUER"`
	JWTAudience  string        `env:"TOLLGATE_JWT_AUDIENCE"`
	JWTUserClaim string        `env:"TOLLGATE_JWT_USER_CLAIM" envDefault:"sub"`
	JWTLeeway    time.Duration `env:"TOLLGATE_JWT_LEEWAY" envDefault:"10s"`

	Models       []string      `env:"TOLLGATE_MODELS" envDefault:"grok-2,grok-2-mini,grok-4"` // names that may be metric labels
	MaxOutput    []string      `env:"TOLLGATE_MODEL_MAX_OUTPUT"`                              // model:tokens
	Encodings    []string      `env:"TOLLGATE_ENCODINGS"`                                     // model:encoding, *:encoding for the others
	Dialect      string        `env:"TOLLGATE_HEADER_DIALECT" envDefault:"tollgate"`
	Predicted    int64         `env:"TOLLGATE_PREDICTED_OUTPUT" envDefault:"1024"` // tokens
	MaxBody      int64         `env:"TOLLGATE_MAX_BODY_BYTES" envDefault:"20971520"`
	MaxBodies    int64         `env:"TOLLGATE_MAX_BODIES_BYTES" envDefault:"536870912"`  // of all requests together
	MaxAnswers   int64         `env:"TOLLGATE_MAX_ANSWERS_BYTES" envDefault:"536870912"` // of all answers together that are no streams
	UpstreamWait time.Duration `env:"TOLLGATE_UPSTREAM_TIMEOUT" envDefault:"10m"`
	UpstreamIdle time.Duration `env:"TOLLGATE_UPSTREAM_IDLE_TIMEOUT" envDefault:"2m"`
	ClientStall  time.Duration `env:"TOLLGATE_CLIENT_STALL_TIMEOUT" envDefault:"1m"`
	Connections  int           `env:"TOLLGATE_CONNECTIONS" envDefault:"1024"` // that are kept open to enforcement and to the upstream, each
	Drain        time.Duration `env:"TOLLGATE_DRAIN" envDefault:"15s"`        // for streams at the stop

	Instance     string     `env:"TOLLGATE_INSTANCE"`
	LogLevel     slog.Level `env:"TOLLGATE_LOG_LEVEL" envDefault:"INFO"`
	OTLPEndpoint string     `env:"OTEL_EXPORTER_OTLP_ENDPOINT"`

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
		bad("TOLLGATE_GATEWAY_ADDR", "must be host:port or :port")
	}
	for _, f := range []struct{ name, v string }{{"TOLLGATE_ENFORCEMENT_URL", c.EnforcementURL}, {"TOLLGATE_UPSTREAM_URL", c.UpstreamURL}, {"TOLLGATE_JWT_JWKS_URL", c.JWKSURL}} {
		if f.v == "" {
			continue
		}
		u, err := url.Parse(f.v)
		switch {
		case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
			bad(f.name, "must be http://host:port or https://host") // the error may hold a password
		case u.User != nil || f.name == "TOLLGATE_UPSTREAM_URL" && u.RawQuery != "":
			bad(f.name, "must hold no password and no query; TOLLGATE_UPSTREAM_API_KEY is for the upstream's credential")
		}
	}
	if c.RedisURL != "" {
		if _, err := redisurl.Options(c.RedisURL); err != nil {
			bad("TOLLGATE_REDIS_URL", "must be redis://[user:password@]host:port/db; rediss:// for TLS")
		}
	}
	if c.PostgresURL != "" && !strings.HasPrefix(c.PostgresURL, "postgres://") && !strings.HasPrefix(c.PostgresURL, "postgresql://") {
		bad("TOLLGATE_POSTGRES_URL", "must be postgres://user:password@host:port/database")
	}
	if n := len(c.ServiceToken.Reveal()); n > 0 && n < 8 {
		bad("TOLLGATE_SERVICE_TOKEN", "must have at least 8 characters")
	}
	if n := len(c.JWTSecret.Reveal()); n > 0 && n < 32 {
		bad("TOLLGATE_JWT_SECRET", "must have at least 32 characters: a shorter one can be guessed from a token")
	}
	if _, err := c.publicKey(); err != nil {
		bad("TOLLGATE_JWT_PUBLIC_KEY", "%v", err)
	}
	for _, name := range c.ForwardHeaders {
		if !headerName.MatchString(name) || kept[http.CanonicalHeaderKey(name)] {
			bad("TOLLGATE_UPSTREAM_FORWARD_HEADERS", "%q can't be handed on: it is no header's name, or one of the connection's or the credential's", name)
		}
	}
	if len(c.Models) == 0 {
		bad("TOLLGATE_MODELS", "must name a model at least")
	}
	for _, m := range c.Models {
		if err := subject.ValidateID(m); err != nil {
			bad("TOLLGATE_MODELS", "%q: %v", m, err)
		}
	}
	if _, err := c.maxOutput(); err != nil {
		bad("TOLLGATE_MODEL_MAX_OUTPUT", "%v", err)
	}
	_, faults := tokens.ParseEncodings(c.Encodings)
	for _, err := range faults {
		bad("TOLLGATE_ENCODINGS", "%v", err)
	}
	if _, err := dialect.Parse(c.Dialect); err != nil {
		bad("TOLLGATE_HEADER_DIALECT", "%v", err)
	}
	for _, f := range []struct {
		name        string
		v, min, max int64
	}{
		{"TOLLGATE_PREDICTED_OUTPUT", c.Predicted, 1, limit.MaxAmount},
		{"TOLLGATE_MAX_BODY_BYTES", c.MaxBody, 1 << 10, 1 << 30},
		{"TOLLGATE_MAX_BODIES_BYTES", c.MaxBodies, c.MaxBody, 1 << 40},
		{"TOLLGATE_MAX_ANSWERS_BYTES", c.MaxAnswers, 2 * proxy.MaxAnswer, 1 << 40},
		{"TOLLGATE_CONNECTIONS", int64(c.Connections), 1, 1 << 20},
	} {
		if f.v < f.min || f.v > f.max {
			bad(f.name, "must be from %d to %d, is %d", f.min, f.max, f.v)
		}
	}
	for _, f := range []struct {
		name     string
		v        time.Duration
		min, max time.Duration
	}{
		{"TOLLGATE_JWT_LEEWAY", c.JWTLeeway, 0, 5 * time.Minute},
		{"TOLLGATE_UPSTREAM_TIMEOUT", c.UpstreamWait, time.Second, 24 * time.Hour},
		{"TOLLGATE_UPSTREAM_IDLE_TIMEOUT", c.UpstreamIdle, time.Second, 24 * time.Hour},
		{"TOLLGATE_CLIENT_STALL_TIMEOUT", c.ClientStall, time.Second, time.Hour},
		{"TOLLGATE_DRAIN", c.Drain, 0, 20 * time.Second},
	} {
		if f.v < f.min || f.v > f.max {
			bad(f.name, "must be from %s to %s, is %s", f.min, f.max, f.v)
		}
	}
	return errors.Join(errs...)
}

var headerName = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")

// kept are headers of a request that must not reach the inference server as they came: the connection's own, credentials, and those that the gateway
// states itself.
var kept = map[string]bool{"Authorization": true, "Proxy-Authorization": true, "Cookie": true, "Host": true, "Content-Length": true, "Content-Encoding": true,
	"Accept-Encoding": true, "X-Request-Id": true, "Connection": true, "Keep-Alive": true, "Proxy-Connection": true, "Te": true, "Trailer": true,
	"Transfer-Encoding": true, "Upgrade": true, "Expect": true, "Range": true}

func (c *Config) publicKey() (*rsa.PublicKey, error) {
	if c.JWTPublicKey == "" {
		return nil, nil //nolint:nilnil // there is none
	}
	block, _ := pem.Decode([]byte(strings.ReplaceAll(c.JWTPublicKey, `\n`, "\n")))
	if block == nil {
		return nil, errors.New("must be a public key in PEM")
	}
	key, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("must be a public key in PEM (BEGIN PUBLIC KEY): %w", err)
	}
	k, ok := key.(*rsa.PublicKey)
	if !ok || k.N.BitLen() < 2048 {
		return nil, errors.New("must be an RSA key of at least 2048 bits")
	}
	return k, nil
}

func (c *Config) maxOutput() (map[string]int64, error) {
	out := map[string]int64{}
	for _, pair := range c.MaxOutput {
		model, tokens, _ := strings.Cut(pair, ":")
		n, err := strconv.ParseInt(tokens, 10, 64)
		if err != nil || n < 1 || n > limit.MaxAmount || subject.ValidateID(model) != nil {
			return nil, fmt.Errorf("%q must be a model and its tokens with a colon between", pair)
		}
		out[model] = n
	}
	return out, nil
}

func (c *Config) upstream() (*url.URL, error) {
	u, err := url.Parse(c.UpstreamURL)
	if err != nil {
		return nil, err
	}
	u.Path = strings.TrimSuffix(strings.TrimRight(u.Path, "/"), "/v1")
	return u, nil
}
