package app

import (
	"strings"
	"testing"

	"github.com/tollgate-dev/tollgate/pkg/config"
)

func load(settings ...string) error {
	var c Config
	return config.Load(append([]string{"TOLLGATE_ENFORCEMENT_URL=http://127.0.0.1:1", "TOLLGATE_SERVICE_TOKEN=service-token", "TOLLGATE_REDIS_URL=redis://127.0.0.1:1/0",
		"TOLLGATE_POSTGRES_URL=postgres://127.0.0.1:1/x", "TOLLGATE_UPSTREAM_URL=http://127.0.0.1:1/v1"}, settings...), &c)
}

func TestFaultySettingsAreNamed(t *testing.T) {
	if err := load("TOLLGATE_UPSTREAM_FORWARD_HEADERS=X-Trace,Accept-Charset"); err != nil {
		t.Fatal(err)
	}
	for _, fault := range []string{
		"TOLLGATE_UPSTREAM_FORWARD_HEADERS=X-Trace,Authorization", "TOLLGATE_UPSTREAM_FORWARD_HEADERS=transfer-encoding", "TOLLGATE_UPSTREAM_FORWARD_HEADERS=Content-length",
		"TOLLGATE_UPSTREAM_FORWARD_HEADERS=X Trace", "TOLLGATE_UPSTREAM_FORWARD_HEADERS=X-Request-ID", "TOLLGATE_UPSTREAM_FORWARD_HEADERS=cookie",
		"TOLLGATE_MAX_BODIES_BYTES=1000", "TOLLGATE_MAX_BODY_BYTES=10", "TOLLGATE_MAX_ANSWERS_BYTES=100000000", "TOLLGATE_UPSTREAM_URL=http://user:secret@host/v1", "TOLLGATE_UPSTREAM_URL=ftp://host",
		"TOLLGATE_JWT_SECRET=short", "TOLLGATE_JWT_PUBLIC_KEY=none", "TOLLGATE_MODEL_MAX_OUTPUT=grok-2", "TOLLGATE_ENCODINGS=grok-2:none", "TOLLGATE_HEADER_DIALECT=own",
		"TOLLGATE_DRAIN=1m", "TOLLGATE_CONNECTIONS=0", "TOLLGATE_GATEWAY_ADDR=8080", "TOLLGATE_MODELS=a b",
	} {
		name, _, _ := strings.Cut(fault, "=")
		if err := load(fault); err == nil || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "secret@") {
			t.Errorf("%s: %v", fault, err)
		}
	}
}
