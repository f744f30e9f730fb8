module github.com/tollgate-dev/tollgate/services/e2e

go 1.26.0

require (
	github.com/caarlos0/env/v11 v11.4.2
	github.com/compose-spec/compose-go/v2 v2.16.2
	github.com/google/uuid v1.6.0
	github.com/santhosh-tekuri/jsonschema/v6 v6.0.3
	github.com/tollgate-dev/tollgate/pkg v0.0.0
	github.com/tollgate-dev/tollgate/schemas v0.0.0-00010101000000-000000000000
)

require (
	github.com/distribution/reference v0.6.0 // indirect
	github.com/docker/go-connections v0.8.2 // indirect
	github.com/docker/go-units v0.5.0 // indirect
	github.com/go-viper/mapstructure/v2 v2.5.0 // indirect
	github.com/mattn/go-shellwords v1.0.12 // indirect
	github.com/opencontainers/go-digest v1.0.0 // indirect
	github.com/sirupsen/logrus v1.10.2 // indirect
	github.com/xhit/go-str2duration/v2 v2.1.0 // indirect
	go.yaml.in/yaml/v4 v4.0.0-rc.4 // indirect
	golang.org/x/sync v0.25.0 // indirect
	golang.org/x/sys v0.50.0 // indirect
	golang.org/x/text v0.44.0 // indirect
)

replace github.com/tollgate-dev/tollgate/pkg => ../../pkg

replace github.com/tollgate-dev/tollgate/migrations => ../../migrations

replace github.com/tollgate-dev/tollgate/schemas => ../../schemas

replace github.com/tollgate-dev/tollgate/services/enforcement => ../../services/enforcement

replace github.com/tollgate-dev/tollgate/services/quota => ../../services/quota

replace github.com/tollgate-dev/tollgate/services/consumer => ../../services/consumer

replace github.com/tollgate-dev/tollgate/services/tollgatectl => ../../services/tollgatectl

replace github.com/tollgate-dev/tollgate/services/standalone => ../../services/standalone
