package app

import (
	"maps"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/config"
	"github.com/tollgate-dev/tollgate/services/enforcement/internal/shed"
)

func atoi(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestConfigReportsEveryFaultAtOnceAndNoSecret(t *testing.T) {
	err := config.Load([]string{"TOLLGATE_ENFORCEMENT_ADDR=8081", "TOLLGATE_ADVERTISE_ADDR=:8081", "TOLLGATE_REDIS_URL=http://:hunter2@x", "TOLLGATE_POSTGRES_URL=mysql://u:hunter2@h/d", "TOLLGATE_KAFKA_BROKERS=a,b:1",
		"TOLLGATE_SERVICE_TOKEN=hunter2", "TOLLGATE_ADMIN_TOKEN=hunter2", "TOLLGATE_REGION=a b", "TOLLGATE_INSTANCE=a:b", "TOLLGATE_LOG_LEVEL=loud", "TOLLGATE_MODELS=a b", "TOLLGATE_LEASE=0s", "TOLLGATE_TOMBSTONE=-1s", "TOLLGATE_CHECK_BUDGET=2h", "TOLLGATE_AWAY_REQUESTS=1",
		"TOLLGATE_SPOOL_MAX_BYTES=9", "TOLLGATE_SPOOL_DIR=config_test.go", "TOLLGATE_MODEL_FALLBACK=x:y", "TOLLGATE_MODEL_GROUPS=x"}, new(Config))
	if err == nil {
		t.Fatal("accepted")
	}
	for _, name := range []string{"ENFORCEMENT_ADDR", "ADVERTISE_ADDR", "REDIS_URL", "POSTGRES_URL", "KAFKA_BROKERS", "SERVICE_TOKEN", "ADMIN_TOKEN", "REGION", "INSTANCE", "MODELS", "LEASE", "TOMBSTONE", "CHECK_BUDGET", "AWAY_REQUESTS", "SPOOL_MAX_BYTES", "SPOOL_DIR", "MODEL_FALLBACK", "MODEL_GROUPS"} {
		if !strings.Contains(err.Error(), "TOLLGATE_"+name+":") {
			t.Errorf("says nothing of %s", name)
		}
	}
	if !strings.Contains(err.Error(), "LogLevel") || strings.Contains(err.Error(), "hunter2") {
		t.Error(err)
	}
	err = config.Load(nil, new(Config))
	for _, name := range []string{"REDIS_URL", "POSTGRES_URL", "KAFKA_BROKERS", "SERVICE_TOKEN"} {
		if err == nil || !strings.Contains(err.Error(), "TOLLGATE_"+name) {
			t.Errorf("says nothing of a missing %s: %v", name, err)
		}
	}
}

func TestEnvironmentAndRunHaveTheSameDefaults(t *testing.T) {
	var c Config
	must := []string{"TOLLGATE_REDIS_URL=redis://h:1", "TOLLGATE_POSTGRES_URL=postgres://h/d", "TOLLGATE_KAFKA_BROKERS=h:1", "TOLLGATE_SERVICE_TOKEN=long-enough"}
	if err := config.Load(must, &c); err != nil {
		t.Fatal(err)
	}
	d := Config{RedisURL: c.RedisURL, PostgresURL: c.PostgresURL, KafkaBrokers: c.KafkaBrokers, ServiceToken: c.ServiceToken}.withDefaults()
	if c.Addr != d.Addr || c.Lease != d.Lease || c.Tombstone != d.Tombstone || c.CheckBudget != d.CheckBudget || c.AwayRequests != d.AwayRequests || c.SpoolMax != d.SpoolMax || strings.Join(c.Models, ",") != strings.Join(d.Models, ",") || c.LogLevel != d.LogLevel {
		t.Errorf("\n%+v\n%+v", c, d)
	}
	if d.CheckBudget != 50*time.Millisecond || d.Instance == "" || d.Instance == (Config{}).withDefaults().Instance {
		t.Errorf("%+v", d)
	}
}

func TestFallbackIsTheShippedOneUnlessToldOtherwise(t *testing.T) {
	for _, c := range []struct {
		models, pairs []string
		want          shed.Fallbacks
	}{
		{nil, nil, shed.Fallbacks{"grok-4": "grok-2-mini", "grok-2": "grok-2-mini"}},
		{nil, []string{"none"}, shed.Fallbacks{}},
		{nil, []string{"grok-4:grok-2"}, shed.Fallbacks{"grok-4": "grok-2"}},
		{[]string{"grok-2", "grok-2-mini", "llama"}, nil, shed.Fallbacks{"grok-2": "grok-2-mini"}},
		{[]string{"llama"}, nil, shed.Fallbacks{}},
	} {
		cfg := Config{Models: c.models, Fallback: c.pairs}.withDefaults()
		if got, _, errs := cfg.models(); len(errs) != 0 || !maps.Equal(got, c.want) {
			t.Errorf("%v %v: %v %v", c.models, c.pairs, got, errs)
		}
	}
}
