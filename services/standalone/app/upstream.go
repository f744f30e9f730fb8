package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/testkit/upstream"
)

// tokenPace is the simulated inference server's, between two tokens of a stream: fast enough to wait for, slow enough to see.
const tokenPace = 30 * time.Millisecond

// startUpstream starts a simulated inference server on a free port, unless there is a real one.
func (s *standalone) startUpstream(ctx context.Context) error {
	if s.cfg.UpstreamURL != "" {
		return nil
	}
	done := s.out.Step("inference")
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for the simulated inference server: %w", err)
	}
	s.cfg.UpstreamURL, s.simulated = "http://"+l.Addr().String(), true
	srv := &http.Server{Handler: upstream.New(upstream.Options{Pace: tokenPace, Scripted: true}), ReadHeaderTimeout: 5 * time.Second}
	s.stack.Go("inference", func(ctx context.Context) error {
		failed := make(chan error, 1)
		go func() { failed <- srv.Serve(l) }()
		select {
		case err := <-failed:
			return err
		case <-ctx.Done():
		}
		err := srv.Close() // whoever asked it has stopped before
		if e := <-failed; !errors.Is(e, http.ErrServerClosed) {
			err = errors.Join(err, e)
		}
		return err
	})
	done("simulated, " + s.cfg.UpstreamURL)
	return nil
}
