package client_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/client"
)

// One request of an inference service, from the decision to the bill. The deferred Settle is reached whatever happens in between: a
// panic of the model, a client that hangs up.
func ExampleEnforcement_Reserve() {
	tollgate := client.NewEnforcement("http://localhost:8081", "the service token", client.WithFailOpen())
	serve := func(ctx context.Context, user, prompt string) (err error) {
		r, err := tollgate.Reserve(ctx, client.CheckRequest{UserID: user, Model: "grok-2", InputTokens: new(int64(120)), MaxOutputTokens: new(int64(1024))})
		var refused *client.Refused
		if errors.As(err, &refused) {
			return fmt.Errorf("429, Retry-After %s: %w", refused.RetryAfter().Round(time.Second), err)
		}
		if err != nil {
			return err
		}
		used := client.Usage{InputTokens: 120}
		defer func() {
			_, settled := r.Settle(ctx, used)
			err = errors.Join(err, settled)
		}()
		return generate(ctx, prompt, func(token string) { used.OutputTokens++ })
	}
	if err := serve(context.Background(), "ann", "Tell me about toll gates."); err != nil {
		fmt.Println(err)
	}
}

func generate(context.Context, string, func(token string)) error { return nil }
