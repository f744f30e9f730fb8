package proxy

import "github.com/tollgate-dev/tollgate/services/gateway/internal/tokens"

// meter adds up what an answer uses, by the totals that the server tells and the text that it sends.
//
// A total is taken in place of the one before unless it is smaller: totals grow, and a smaller one is a fault, with all that is told beside it. An
// output of 0 beside text is no figure. A figure that was never told, or never soundly, is counted.
//
// Of an answer that has come to its end, the output is the last total if no text came after it. Before the end (the client leaves, the server breaks
// off, a stream draws), and where text did come, it is that total and the count of the text since it was first told; and at least a token for each
// chunk with text.
type meter struct {
	newText func() *tokens.Text

	input, cached, output figure // as told last

	text  *tokens.Text // that came since output was told; nil: none
	since int64        // chunks of it

	chunks int64 // that bore text, all
	size   int64 // bytes of text, all
	heard  int64 // chunks when output was told last, though with the same total
	ended  bool  // the answer is whole
}

// add counts what a choice has produced.
func (m *meter) add(c choice) {
	before := m.size
	c.produced(func(piece string) {
		if piece == "" {
			return
		}
		if m.text == nil {
			m.text = m.newText()
		}
		m.text.Add(piece)
		m.size += int64(len(piece))
	})
	if m.size > before {
		m.chunks++
		m.since++
	}
}

// tell takes the server's figures, which are of all text that was added.
func (m *meter) tell(u figures) {
	out := u.completion
	if out.ok && m.output.ok && out.n < m.output.n {
		return
	}
	if u.prompt.ok && (u.prompt.n > 0 || !m.input.ok) {
		m.input = u.prompt
	}
	if u.cached.ok {
		m.cached = u.cached
	}
	if !out.ok || out.n == 0 && m.size > 0 {
		return
	}
	if !m.output.ok || out.n > m.output.n {
		m.output, m.text, m.since = out, nil, 0
	}
	m.heard = m.chunks
}

// produced is how many output tokens there are by now, and whether the server says so itself.
func (m *meter) produced() (n int64, told bool) {
	if m.output.ok && m.ended && m.heard == m.chunks {
		return m.output.n, true
	}
	counted := m.since
	if m.text != nil {
		counted = max(counted, m.text.Tokens())
	}
	n = max(m.output.n+counted, m.chunks)
	return n, m.output.ok && n == m.output.n
}

// progress grows with the output by about a token each, and costs nothing.
func (m *meter) progress() int64 { return m.chunks + m.size/4 + m.output.n }
