// Command gateway serves OpenAI's API in front of an inference server: it has each REQUEST decided, hands it on, and settles what it used. Its
// settings are the TOLLGATE_… variables of app.Config; -check-config prints them.
package main

import (
	"context"
	"os"

	"github.com/tollgate-dev/tollgate/pkg/config"
	"github.com/tollgate-dev/tollgate/services/gateway/app"
)

func main() {
	cfg := new(app.Config)
	os.Exit(config.Main("gateway", cfg, func(ctx context.Context) error { return app.Run(ctx, *cfg) }))
}
