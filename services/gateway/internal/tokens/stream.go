package tokens

import (
	"strings"
	"unicode/utf8"
)

// A Text counts a text that comes in pieces, such as the output of a stream, without counting anything twice. It is not safe for concurrent use.
type Text struct {
	codec   codec
	settled int64
	pending strings.Builder
	looked  int   // bytes of pending in which there is no boundary
	counted int   // bytes of pending that tail is the count of
	tail    int64 // tokens of pending
}

const (
	// settleFrom is how much is pending before a place is looked for at which it can be settled.
	settleFrom = 256
	// settleAt is how much may be pending where there is no such place; it is then cut anywhere, which may count one token too many.
	settleAt = 4 << 10
)

// NewText begins a text of a model's.
func (c *Counter) NewText(model string) *Text { return &Text{codec: c.codec(model)} }

// Add takes the next piece.
func (t *Text) Add(piece string) {
	for len(piece) > settleAt { // what is pending stays short, whatever is added
		n := settleAt
		for n > settleAt-utf8.UTFMax && !utf8.RuneStart(piece[n]) {
			n--
		}
		t.add(piece[:n])
		piece = piece[n:]
	}
	t.add(piece)
}

func (t *Text) add(piece string) {
	t.pending.WriteString(piece)
	if t.pending.Len() < settleFrom {
		return
	}
	text := t.pending.String()
	at := boundary(text, t.looked)
	t.looked = max(0, len(text)-2) // what comes next may make one of its last bytes
	if at <= 0 {
		if len(text) < settleAt {
			return
		}
		for at = len(text); at > len(text)-utf8.UTFMax; at-- { // a rune may still be coming
			if r, size := utf8.DecodeLastRuneInString(text[:at]); r != utf8.RuneError || size != 1 {
				break
			}
		}
	}
	t.settled += exact(t.codec, text[:at])
	t.pending.Reset()
	t.pending.WriteString(text[at:])
	t.counted, t.tail, t.looked = 0, 0, 0
}

// boundary is the last place at which a text can be cut without changing its count: before a space between two letters every encoding begins
// a new word. 0: there is none. Before from there is none.
func boundary(text string, from int) int {
	for i := len(text) - 2; i > max(0, from-1); i-- {
		if text[i] == ' ' && letter(text[i-1]) && letter(text[i+1]) {
			return i
		}
	}
	return 0
}

func letter(b byte) bool { return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' }

// Tokens is the count of all that was added. It costs as much as what is pending, 4 kB at most, and nothing if nothing was added since.
func (t *Text) Tokens() int64 {
	if n := t.pending.Len(); t.counted != n {
		t.counted, t.tail = n, exact(t.codec, t.pending.String())
	}
	return t.settled + t.tail
}
