package app

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/clickhouseledger"
	"github.com/tollgate-dev/tollgate/pkg/config"
)

// Config is all that the consumer reads from its environment.
type Config struct {
	KafkaBrokers  []string      `env:"TOLLGATE_KAFKA_BROKERS,required"`                        // host:port, comma-separated
	ClickHouseURL config.Secret `env:"TOLLGATE_CLICKHOUSE_URL,required"`                       // clickhouse://user:password@host:9000/tollgate
	Addr          string        `env:"TOLLGATE_CONSUMER_ADDR" envDefault:":8083"`              // health and metrics
	Group         string        `env:"TOLLGATE_CONSUMER_GROUP" envDefault:"tollgate-consumer"` // Kafka consumer group; a new one reads from the beginning
	BatchRecords  int           `env:"TOLLGATE_CONSUMER_BATCH_RECORDS" envDefault:"50000"`     // messages
	BatchBytes    int           `env:"TOLLGATE_CONSUMER_BATCH_BYTES" envDefault:"67108864"`    // of keys and values
	BatchInterval time.Duration `env:"TOLLGATE_CONSUMER_BATCH_INTERVAL" envDefault:"500ms"`    // the longest a message waits for its batch to fill
	Reconcile     time.Duration `env:"TOLLGATE_RECONCILE_INTERVAL" envDefault:"1m"`            // between comparisons of views and offsets
	LogLevel      slog.Level    `env:"TOLLGATE_LOG_LEVEL" envDefault:"info"`                   // debug, info, warn, error
	Instance      string        `env:"TOLLGATE_INSTANCE" envDefault:"consumer"`                // names this process in logs and to Kafka

	// Not from the environment: for whoever runs the consumer inside another process, and for tests.
	LogTo           io.Writer `env:"-"` // standard error if nil
	Topic           string    `env:"-"` // usage.Topic if empty
	DeadLetterTopic string    `env:"-"` // usage.DeadLetterTopic if empty
	QuotaTopic      string    `env:"-"` // usage.QuotaTopic if empty
}

// ListenAddr implements config.Service.
func (c *Config) ListenAddr() string { return c.Addr }

// Validate implements config.Validator. Required variables that are missing are told by their tags.
func (c *Config) Validate() error {
	var errs []error
	bad := func(name, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %s", name, fmt.Sprintf(format, args...)))
	}
	for _, b := range c.KafkaBrokers {
		if _, _, err := net.SplitHostPort(b); err != nil {
			bad("TOLLGATE_KAFKA_BROKERS", "%q is not host:port", b)
		}
	}
	if c.ClickHouseURL != "" {
		if _, err := clickhouseledger.Options(c.ClickHouseURL.Reveal()); err != nil {
			bad("TOLLGATE_CLICKHOUSE_URL", "%v", err)
		}
	}
	if _, _, err := net.SplitHostPort(c.Addr); err != nil {
		bad("TOLLGATE_CONSUMER_ADDR", "%q is not host:port", c.Addr)
	}
	if c.Group == "" {
		bad("TOLLGATE_CONSUMER_GROUP", "must not be empty")
	}
	for _, n := range []struct {
		name          string
		got, min, max int
	}{{"TOLLGATE_CONSUMER_BATCH_RECORDS", c.BatchRecords, 1, 200_000}, {"TOLLGATE_CONSUMER_BATCH_BYTES", c.BatchBytes, 1 << 10, 1 << 30}} {
		if n.got < n.min || n.got > n.max {
			bad(n.name, "must be from %d to %d, is %d", n.min, n.max, n.got)
		}
	}
	if c.BatchInterval < time.Millisecond || c.BatchInterval > time.Minute {
		bad("TOLLGATE_CONSUMER_BATCH_INTERVAL", "must be from 1ms to 1m, is %s", c.BatchInterval)
	}
	if c.Reconcile < time.Second || c.Reconcile > 24*time.Hour {
		bad("TOLLGATE_RECONCILE_INTERVAL", "must be from 1s to 24h, is %s", c.Reconcile)
	}
	return errors.Join(errs...)
}
