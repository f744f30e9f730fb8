// Command enforcement serves the decision API: REQUEST in, DECISION out, and one EVENT for each request that ends. Its settings are
// the TOLLGATE_… variables of app.Config; -check-config prints them.
package main

import (
	"context"
	"os"

	"github.com/tollgate-dev/tollgate/pkg/config"
	"github.com/tollgate-dev/tollgate/services/enforcement/app"
)

func main() {
	cfg := new(app.Config)
	os.Exit(config.Main("enforcement", cfg, func(ctx context.Context) error { return app.Run(ctx, *cfg) }))
}
