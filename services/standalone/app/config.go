package app

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/config"
)

// Config says what to start and where. Every other TOLLGATE_… variable in Environ reaches the services unchanged.
type Config struct {
	DataDir           string        `env:"TOLLGATE_DATA_DIR" envDefault:".tollgate"`
	GatewayAddr       string        `env:"TOLLGATE_GATEWAY_ADDR" envDefault:"127.0.0.1:8080"`
	EnforcementAddr   string        `env:"TOLLGATE_ENFORCEMENT_ADDR" envDefault:"127.0.0.1:8081"`
	QuotaAddr         string        `env:"TOLLGATE_QUOTA_ADDR" envDefault:"127.0.0.1:8082"`
	ConsumerAddr      string        `env:"TOLLGATE_CONSUMER_ADDR" envDefault:"127.0.0.1:8083"`
	RedisURL          string        `env:"TOLLGATE_REDIS_URL"`
	PostgresURL       string        `env:"TOLLGATE_POSTGRES_URL"`
	KafkaBrokers      []string      `env:"TOLLGATE_KAFKA_BROKERS"`
	ClickHouseURL     string        `env:"TOLLGATE_CLICKHOUSE_URL"`
	ClickHouseHTTPURL string        `env:"TOLLGATE_CLICKHOUSE_HTTP_URL"`
	FinanceUser       string        `env:"TOLLGATE_FINANCE_USER"`
	FinancePassword   config.Secret `env:"TOLLGATE_FINANCE_PASSWORD"`
	UpstreamURL       string        `env:"TOLLGATE_UPSTREAM_URL"` // the inference server; a simulated one if empty
	ServiceToken      config.Secret `env:"TOLLGATE_SERVICE_TOKEN"`
	AdminToken        config.Secret `env:"TOLLGATE_ADMIN_TOKEN"`
	ViewerToken       config.Secret `env:"TOLLGATE_VIEWER_TOKEN"`

	Traffic time.Duration // of sample traffic; 0: none
	Exit    bool          // stop after the closing check
	Environ []string      // "NAME=value" lines
	Out     io.Writer
}

// Validate implements config.Validator.
func (c *Config) Validate() error {
	var errs []error
	for _, a := range c.listeners() {
		if _, port, err := net.SplitHostPort(a.addr); err != nil || port == "" {
			errs = append(errs, fmt.Errorf("%s: want host:port or :port, is %q", a.variable, a.addr))
		}
	}
	if c.DataDir == "" {
		errs = append(errs, errors.New("TOLLGATE_DATA_DIR: must not be empty"))
	}
	if c.ClickHouseHTTPURL != "" && c.ClickHouseURL == "" {
		errs = append(errs, errors.New("TOLLGATE_CLICKHOUSE_URL: must be set when TOLLGATE_CLICKHOUSE_HTTP_URL is"))
	}
	return errors.Join(errs...)
}

type listener struct{ name, variable, addr string }

func (c *Config) listeners() []listener {
	return []listener{
		{"gateway", "TOLLGATE_GATEWAY_ADDR", c.GatewayAddr},
		{"enforcement", "TOLLGATE_ENFORCEMENT_ADDR", c.EnforcementAddr},
		{"quota", "TOLLGATE_QUOTA_ADDR", c.QuotaAddr},
		{"consumer", "TOLLGATE_CONSUMER_ADDR", c.ConsumerAddr},
	}
}

// Load reads the command line and the environment.
func Load(args, environ []string, stdout, stderr io.Writer) (Config, error) {
	c := Config{Environ: environ, Out: stdout}
	fs := flag.NewFlagSet("standalone", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.DurationVar(&c.Traffic, "traffic", 10*time.Second, "how long to send sample traffic of all tiers through the gateway")
	none := fs.Bool("no-traffic", false, "send no sample traffic")
	fs.BoolVar(&c.Exit, "exit", false, "stop after the check that log and ledger agree; exit 1 if they don't")
	if err := fs.Parse(args); err != nil {
		return c, err
	}
	if fs.NArg() > 0 {
		return c, fmt.Errorf("unexpected argument %q; see -help", fs.Arg(0))
	}
	if *none {
		c.Traffic = 0
	}
	if c.Traffic < 0 || c.Traffic > time.Hour {
		return c, fmt.Errorf("-traffic must be from 0 to 1h, is %s", c.Traffic)
	}
	err := config.Load(environ, &c)
	return c, err
}

// baseURL is where a client on this machine reaches a listener.
func baseURL(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "http://" + addr
	}
	switch host {
	case "", "0.0.0.0", "::":
		host = "127.0.0.1"
	}
	return "http://" + net.JoinHostPort(host, port)
}
