// Command quota runs the quota admin API (DESIGN §5): the CONTROL side, where what was sold is changed.
package main

import (
	"context"
	"os"

	"github.com/tollgate-dev/tollgate/pkg/config"
	"github.com/tollgate-dev/tollgate/services/quota/app"
)

func main() {
	cfg := &app.Config{}
	os.Exit(config.Main("quota", cfg, func(ctx context.Context) error { return app.Run(ctx, *cfg) }))
}
