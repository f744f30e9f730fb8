package app

import (
	"strings"
	"testing"

	"github.com/tollgate-dev/tollgate/pkg/config"
)

func TestDefaultsAreValid(t *testing.T) {
	var c Config
	if err := config.Load([]string{"TOLLGATE_KAFKA_BROKERS=a:9092,b:9092", "TOLLGATE_CLICKHOUSE_URL=clickhouse://u:p@h:9000/tollgate"}, &c); err != nil {
		t.Fatal(err)
	}
	if len(c.KafkaBrokers) != 2 || c.ListenAddr() != ":8083" || c.BatchRecords != 50_000 || c.Group == "" {
		t.Errorf("%+v", c)
	}
}

func TestEveryFaultOfTheConfigurationIsNamed(t *testing.T) {
	var c Config
	err := config.Load([]string{"TOLLGATE_KAFKA_BROKERS=nowhere", "TOLLGATE_CLICKHOUSE_URL=http://u:hunter2@h/x", "TOLLGATE_CONSUMER_ADDR=8083", "TOLLGATE_CONSUMER_BATCH_RECORDS=0",
		"TOLLGATE_CONSUMER_BATCH_BYTES=1", "TOLLGATE_CONSUMER_BATCH_INTERVAL=0s", "TOLLGATE_RECONCILE_INTERVAL=0s"}, &c)
	if err == nil {
		t.Fatal("accepted")
	}
	for _, name := range []string{"TOLLGATE_KAFKA_BROKERS", "TOLLGATE_CLICKHOUSE_URL", "TOLLGATE_CONSUMER_ADDR", "TOLLGATE_CONSUMER_BATCH_RECORDS", "TOLLGATE_CONSUMER_BATCH_BYTES",
		"TOLLGATE_CONSUMER_BATCH_INTERVAL", "TOLLGATE_RECONCILE_INTERVAL"} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%s is not named in %v", name, err)
		}
	}
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a password is told: %v", err)
	}
	if err := config.Load(nil, &Config{}); err == nil || !strings.Contains(err.Error(), "TOLLGATE_CLICKHOUSE_URL") {
		t.Errorf("without required variables: %v", err)
	}
}
