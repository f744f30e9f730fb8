package e2e

import (
	"testing"

	"github.com/caarlos0/env/v11"

	"github.com/tollgate-dev/tollgate/pkg/config"
	"github.com/tollgate-dev/tollgate/pkg/usage"
)

// configs gives the settings of every service that docker-compose.yml may start, by its name there.
func configs() map[string]any {
	return map[string]any{
		"consumer": &struct {
			Addr       string        `env:"TOLLGATE_CONSUMER_ADDR" envDefault:":8083"`
			Brokers    string        `env:"TOLLGATE_KAFKA_BROKERS,required"`
			ClickHouse config.Secret `env:"TOLLGATE_CLICKHOUSE_URL,required"`
			LogLevel   string        `env:"TOLLGATE_LOG_LEVEL" envDefault:"info"`
		}{},
		"enforcement": &struct {
			Addr     string        `env:"TOLLGATE_ENFORCEMENT_ADDR" envDefault:":8081"`
			Redis    config.Secret `env:"TOLLGATE_REDIS_URL,required"`
			Postgres config.Secret `env:"TOLLGATE_POSTGRES_URL,required"`
			Brokers  string        `env:"TOLLGATE_KAFKA_BROKERS,required"`
			Token    config.Secret `env:"TOLLGATE_SERVICE_TOKEN,required"`
			Admin    config.Secret `env:"TOLLGATE_ADMIN_TOKEN"`
			Region   string        `env:"TOLLGATE_REGION"`
			Instance string        `env:"TOLLGATE_INSTANCE"`
			SpoolDir string        `env:"TOLLGATE_SPOOL_DIR"`
			LogLevel string        `env:"TOLLGATE_LOG_LEVEL" envDefault:"info"`
		}{},
		"gateway": &struct {
			Addr        string        `env:"TOLLGATE_GATEWAY_ADDR" envDefault:":8080"`
			Enforcement string        `env:"TOLLGATE_ENFORCEMENT_URL,required"`
			Redis       config.Secret `env:"TOLLGATE_REDIS_URL,required"`
			Postgres    config.Secret `env:"TOLLGATE_POSTGRES_URL,required"`
			Token       config.Secret `env:"TOLLGATE_SERVICE_TOKEN,required"`
			Upstream    string        `env:"TOLLGATE_UPSTREAM_URL,required"`
			JWKS        string        `env:"TOLLGATE_JWT_JWKS_URL"`
			Issuer      string        `env:"TOLLGATE_JWT_ISSUER"`
			Audience    string        `env:"TOLLGATE_JWT_AUDIENCE"`
			LogLevel    string        `env:"TOLLGATE_LOG_LEVEL" envDefault:"info"`
		}{},
		"quota": &struct {
			Addr     string        `env:"TOLLGATE_QUOTA_ADDR" envDefault:":8082"`
			Redis    config.Secret `env:"TOLLGATE_REDIS_URL,required"`
			Postgres config.Secret `env:"TOLLGATE_POSTGRES_URL,required"`
			Brokers  string        `env:"TOLLGATE_KAFKA_BROKERS,required"`
			Admin    config.Secret `env:"TOLLGATE_ADMIN_TOKEN,required"`
			Viewer   config.Secret `env:"TOLLGATE_VIEWER_TOKEN"`
			Service  config.Secret `env:"TOLLGATE_SERVICE_TOKEN"`
			LogLevel string        `env:"TOLLGATE_LOG_LEVEL" envDefault:"info"`
		}{},
	}
}

// setting is one variable that a service reads.
type setting struct {
	required bool
	preset   string
}

// knownVariables tells the variables that each service reads, from the tags of its configuration.
func knownVariables(t *testing.T) map[string]map[string]setting {
	t.Helper()
	known := make(map[string]map[string]setting)
	for name, cfg := range configs() {
		params, err := env.GetFieldParams(cfg)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		known[name] = make(map[string]setting)
		for _, p := range params {
			known[name][p.Key] = setting{required: p.Required || p.NotEmpty, preset: p.DefaultValue}
		}
	}
	return known
}

// topics are those that the services write and read; none of them creates one.
func topics() []string {
	return []string{usage.Topic, usage.QuotaTopic, usage.DeadLetterTopic}
}
