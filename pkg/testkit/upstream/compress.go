package upstream

import (
	"compress/gzip"
	"io"
	"net/http"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"
)

type compressor interface {
	io.WriteCloser
	Flush() error
}

// compress sets where the answer is written, and gives what ends it.
func (g *answering) compress() (end func()) {
	flush := func() { _ = http.NewResponseController(g.w).Flush() } // the client has gone if this fails
	var c compressor
	switch g.Script.Encoding {
	case "gzip":
		c = gzip.NewWriter(g.w)
	case "br":
		c = brotli.NewWriter(g.w)
	case "zstd":
		c, _ = zstd.NewWriter(g.w, zstd.WithEncoderConcurrency(1)) // its only error is a wrong option
	default:
		g.out, g.flush = g.w, flush
		return func() {}
	}
	g.w.Header().Set("Content-Encoding", g.Script.Encoding)
	g.out, g.flush = c, func() { _ = c.Flush(); flush() }
	return func() { _ = c.Close() }
}
