module github.com/tollgate-dev/tollgate/migrations

go 1.26.0

require github.com/pressly/goose/v3 v3.30.1

require (
	github.com/mfridman/interpolate v0.2.0 // indirect
	github.com/sethvargo/go-retry v0.5.0 // indirect
	go.uber.org/multierr v1.11.0 // indirect
	golang.org/x/sync v0.25.0 // indirect
)
