package proxy

import (
	"github.com/tollgate-dev/tollgate/pkg/limit"
	"github.com/tollgate-dev/tollgate/services/gateway/internal/tokens"
)

// meter adds up what an answer uses, by the totals that the server tells and the text that it sends.
//
// A total is taken in place of the one before unless it is smaller: totals grow, and a smaller one is a fault, with all that is told beside it. An
// output of 0 beside text is no figure. A figure that was never told, or never soundly, is counted.
//
// Where several answers were asked for, a total that comes with one of them may be of that one alone (vLLM's continuous_usage_stats, and servers that
// tell each answer's at its end) or of all: both are seen, and neither says which it is. The reading that lies nearer to the text counts. A total
// that comes by itself, or with several answers, is of all, and the word that counts.
//
// Of an answer that has come to its end, the output is the last total if no text came after it. Before the end (the client leaves, the server breaks
// off, a stream draws), and where text did come, it is that total and the count of the text since it was first told; and at least a token for each
// chunk with text.
type meter struct {
	newText func() *tokens.Text

	input, cached, output figure // as told last

	text  *tokens.Text // that came since output was told; nil: none
	since int64        // chunks of it

	choices int64         // answers that were asked for
	of      map[int]int64 // what was told with each of several answers since a total of all was told

	chunks int64 // that bore text, all
	size   int64 // bytes of text, all
	heard  int64 // chunks when output was told last, though with the same total
	ended  bool  // the answer is whole
}

// add counts what an answer has produced.
func (m *meter) add(text string) {
	if text == "" {
		return
	}
	if m.text == nil {
		m.text = m.newText()
	}
	m.text.Add(text)
	m.size += int64(len(text))
	m.chunks++
	m.since++
}

// all is the index of figures that are of all answers.
const all = -1

// tell takes the server's figures, which are of all text that was added, or of what was added of one answer.
func (m *meter) tell(index int, u figures) {
	out := u.completion
	if m.choices < 2 {
		index = all
	}
	before, several := m.of[index]
	several = several || index != all && int64(len(m.of)) < min(m.choices, maxChoices)
	if index == all || !several {
		before = m.output.n
	}
	if out.ok && m.output.ok && out.n < before {
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
	if !m.output.ok || out.n > before {
		m.text, m.since = nil, 0
	}
	m.output = figure{max(m.output.n, out.n), true}
	switch {
	case index == all:
		m.of = nil
	case several:
		if m.of == nil {
			m.of = map[int]int64{}
		}
		m.of[index] = out.n
	}
	m.heard = m.chunks
}

// told is what the server has told of the output.
func (m *meter) told() int64 {
	sum := int64(0)
	for _, n := range m.of {
		sum = min(sum+n, limit.MaxAmount/2)
	}
	text := max(m.chunks, m.size/4)
	if away := func(n int64) int64 { return max(n-text, text-n) }; sum > m.output.n && away(sum) < away(m.output.n) {
		return sum
	}
	return m.output.n
}

// produced is how many output tokens there are by now, and whether the server says so itself.
func (m *meter) produced() (n int64, told bool) {
	said := m.told()
	if m.output.ok && m.ended && m.heard == m.chunks {
		return said, true
	}
	counted := m.since
	if m.text != nil {
		counted = max(counted, m.text.Tokens())
	}
	n = max(said+counted, m.chunks)
	return n, m.output.ok && n == said
}

// progress grows with the output by about a token each, and costs nothing.
func (m *meter) progress() int64 { return m.chunks + m.size/4 + m.output.n }
