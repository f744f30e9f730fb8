package proxy

// ByBytes is a Counter that takes four bytes for a token: close for English text, too many for a body's field names, too few for other scripts.
type ByBytes struct{}

const bytesPerToken = 4

// Input implements Counter.
func (ByBytes) Input(_, _ string, text []byte) int64 {
	return int64(len(text)+bytesPerToken-1) / bytesPerToken
}

// Output implements Counter.
func (ByBytes) Output(string) Text { return new(byBytes) }

type byBytes struct{ bytes int64 }

func (t *byBytes) Add(piece string) { t.bytes += int64(len(piece)) }
func (t *byBytes) Tokens() int64    { return (t.bytes + bytesPerToken - 1) / bytesPerToken }
