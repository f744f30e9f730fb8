// Command consumer moves usage events from Kafka into the ClickHouse ledger. Settings: package app, TOLLGATE_… variables.
package main

import (
	"context"
	"os"

	"github.com/tollgate-dev/tollgate/pkg/config"
	"github.com/tollgate-dev/tollgate/services/consumer/app"
)

func main() {
	var cfg app.Config
	os.Exit(config.Main("consumer", &cfg, func(ctx context.Context) error { return app.Run(ctx, cfg) }))
}
