package e2e

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

// A typo in docker-compose.yml would otherwise show only on a machine with Docker: a variable that no service reads is silently
// a default.
func TestComposeSetsOnlyVariablesTheServicesKnow(t *testing.T) {
	known := knownVariables(t)
	for name, service := range ourServices(t) {
		settings, ok := known[name]
		if !ok {
			t.Errorf("%s: knownVariables has no such service", name)
			continue
		}
		for variable := range service.Environment {
			if _, ok := settings[variable]; !ok && strings.HasPrefix(variable, "TOLLGATE_") {
				t.Errorf("%s: sets %s, which it does not read", name, variable)
			}
		}
		for variable, s := range settings {
			if service.Environment[variable] == nil && s.required {
				t.Errorf("%s: does not set %s, which it cannot start without", name, variable)
			}
		}
	}
}

func TestComposePublishesThePortEachServiceListensOn(t *testing.T) {
	for name, service := range ourServices(t) {
		variable := "TOLLGATE_" + strings.ToUpper(name) + "_ADDR"
		value := knownVariables(t)[name][variable].preset
		if set := service.Environment[variable]; set != nil {
			value = *set
		}
		_, text, _ := strings.Cut(value, ":")
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			t.Errorf("%s: %s is %q, not an address", name, variable, value)
			continue
		}
		targets := make([]uint64, 0, 1)
		for _, p := range service.Ports {
			targets = append(targets, uint64(p.Target))
		}
		if !slices.Equal(targets, []uint64{port}) {
			t.Errorf("%s: publishes %v, listens on %d", name, targets, port)
		}
		if service.HealthCheck == nil || !slices.Equal(service.HealthCheck.Test, []string{"CMD", "/app", "-healthcheck"}) {
			t.Errorf("%s: its health check is not the program's own", name)
		}
	}
}

func TestComposeIsReachableFromThisMachineOnly(t *testing.T) {
	for name, service := range load(t, secrets(t)).Services {
		for _, p := range service.Ports {
			if p.HostIP != "127.0.0.1" {
				t.Errorf("%s: port %d is published on %q", name, p.Target, p.HostIP)
			}
		}
		if service.NetworkMode == "host" {
			t.Errorf("%s: is on the host's network", name)
		}
	}
}

func TestComposeHasNoSecretOfItsOwn(t *testing.T) {
	for missing := range secrets(t) {
		some := maps.Clone(secrets(t))
		delete(some, missing)
		if _, err := loadErr(t.Context(), t, some); err == nil || !strings.Contains(err.Error(), "make env") {
			t.Errorf("without %s: want an error that names `make env`, got %v", missing, err)
		}
	}
	// Nothing that looks like a password stands in the resolved file except what secrets supplied.
	secret := regexp.MustCompile(`(?i)(password|token|secret)`)
	for name, service := range load(t, secrets(t)).Services {
		for variable, value := range service.Environment {
			holds := secret.MatchString(variable) || value != nil && strings.Contains(*value, "://") && strings.Contains(*value, "@")
			if holds && (value == nil || !strings.Contains(*value, "secret-of-")) {
				t.Errorf("%s: %s does not come from .env", name, variable)
			}
		}
	}
}

func TestComposeCreatesEveryTopic(t *testing.T) {
	script := strings.Join(load(t, secrets(t)).Services["kafka-init"].Command, "\n")
	for _, topic := range topics() {
		if !regexp.MustCompile(`--topic ` + regexp.QuoteMeta(topic) + ` `).MatchString(script) {
			t.Errorf("kafka-init does not create %s", topic)
		}
	}
}

// ourServices are those of the file that are built from this repository.
func ourServices(t *testing.T) map[string]types.ServiceConfig {
	t.Helper()
	ours := make(map[string]types.ServiceConfig)
	for name, service := range load(t, secrets(t)).Services {
		if service.Build == nil {
			continue
		}
		ours[name] = service
		arg := service.Build.Args["SERVICE"]
		if arg == nil {
			t.Fatalf("%s: no SERVICE to build", name)
		}
		if _, err := os.Stat(filepath.Join(root, "services", *arg, "cmd", *arg)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(ours) == 0 {
		t.Fatal("docker-compose.yml builds no service of ours")
	}
	return ours
}

// secrets gives every name that services/compose-env.sh writes a value that is easily found again.
func secrets(t *testing.T) map[string]string {
	t.Helper()
	script, err := os.ReadFile(filepath.Join(root, "services", "compose-env.sh"))
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`(?m)^names="([A-Z_ ]+)"$`).FindSubmatch(script)
	if names == nil {
		t.Fatal("services/compose-env.sh lists no names")
	}
	values := make(map[string]string)
	for _, name := range strings.Fields(string(names[1])) {
		values[name] = "secret-of-" + name
	}
	return values
}

const root = "../.."

func load(t *testing.T, env map[string]string) *types.Project {
	t.Helper()
	project, err := loadErr(t.Context(), t, env)
	if err != nil {
		t.Fatal(err)
	}
	return project
}

// loadErr reads docker-compose.yml as docker compose does, validated against the compose specification, with nothing but env to
// fill its variables: neither this process's environment nor a .env file counts.
func loadErr(ctx context.Context, t *testing.T, env map[string]string) (*types.Project, error) {
	t.Helper()
	pairs := make([]string, 0, len(env))
	for name, value := range env {
		pairs = append(pairs, name+"="+value)
	}
	options, err := cli.NewProjectOptions([]string{filepath.Join(root, "docker-compose.yml")},
		cli.WithWorkingDirectory(root), cli.WithEnv(pairs), cli.WithInterpolation(true), cli.WithResolvedPaths(false))
	if err != nil {
		t.Fatal(err)
	}
	return options.LoadProject(ctx)
}
