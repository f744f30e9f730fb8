package tokens

import (
	"hash/maphash"
	"math"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// ExactBytes is up to how much text of one request is counted exactly.
	ExactBytes = 64 << 10
	// SampleBytes of longer text are counted exactly, in blocks of about blockBytes.
	SampleBytes = 32 << 10
	blockBytes  = 512
	// Margin is added to an extrapolated count, so that it is rarely below the real one.
	Margin = 0.02
)

// CountText counts a text; estimated tells that it was too long to be counted exactly.
func (c *Counter) CountText(model, text string) (tokens int64, estimated bool) {
	return c.texts(model, []string{text})
}

// texts counts several texts, each by itself.
func (c *Counter) texts(model string, texts []string) (int64, bool) {
	total := 0
	for _, t := range texts {
		total += len(t)
	}
	codec := c.codec(model)
	if total <= ExactBytes {
		var n int64
		for _, t := range texts {
			n += exact(codec, t)
		}
		return n, false
	}
	return c.estimate(codec, texts, total), true
}

// spaceRun is the longest run of white space that is given to a codec, in bytes. The patterns by which encodings cut text into words take time in
// proportion to the square of such a run's length, if it is of several kinds: 70 s for 256 kB of " \n".
const spaceRun = 256

// exact counts a text. Where a run of white space is longer than spaceRun it is cut, and each cut may count one token too many.
func exact(c codec, text string) (n int64) {
	run, from := 0, 0
	for i := 0; i < len(text); {
		r, size := rune(text[i]), 1
		if r >= utf8.RuneSelf {
			r, size = utf8.DecodeRuneInString(text[i:])
		}
		if i += size; !unicode.IsSpace(r) {
			run = 0
		} else if run += size; run >= spaceRun {
			n += whole(c, text[from:i])
			run, from = 0, i
		}
	}
	return n + whole(c, text[from:])
}

// whole counts a text at once. A codec that fails (it never has) costs an upper bound: a token is a byte at least.
func whole(c codec, text string) int64 {
	if text == "" {
		return 0
	}
	n, err := c.Count(text)
	if err != nil {
		return int64(len(text))
	}
	return int64(n)
}

// estimate extrapolates from a sample. Each stratum of the texts, which are as if written one after the other, gives one block, at a place that
// depends on the texts and on this process. So the same texts get the same count here, and nobody can write a text whose sample is its
// cheapest part.
func (c *Counter) estimate(codec codec, texts []string, total int) int64 {
	var h maphash.Hash
	h.SetSeed(c.seed)
	for _, t := range texts {
		_, _ = h.WriteString(t) // can't fail
	}
	state := h.Sum64()
	const blocks = SampleBytes / blockBytes
	stratum := total / blocks
	var counted, sampled, whole float64
	at, next := 0, 0 // where the text begins among all, and the stratum to be sampled
	place := func() int {
		state += 0x9e3779b97f4a7c15 // splitmix64
		z := state
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		return next*stratum + int((z^z>>31)%uint64(stratum)) //nolint:gosec // below stratum
	}
	begin := place()
	for _, t := range texts {
		whole += shape(t)
		for next < blocks && begin < at+len(t) {
			block := cut(t, begin-at)
			counted += float64(exact(codec, block))
			sampled += shape(block)
			if next++; next < blocks {
				begin = place()
			}
		}
		at += len(t)
	}
	if sampled == 0 {
		return int64(total)
	}
	return int64(math.Ceil(min(float64(total), whole*counted/sampled*(1+Margin))))
}

// cut gives a block of a text from about a place on, from the beginning of one word to the end of another if there is any.
func cut(text string, from int) string {
	from = min(from, max(0, len(text)-blockBytes))
	block := text[from:min(len(text), from+blockBytes)]
	if i := strings.IndexByte(block, ' '); from > 0 && i >= 0 && i < blockBytes/4 {
		block = block[i:]
	}
	if i := strings.LastIndexByte(block, ' '); from+blockBytes < len(text) && i > len(block)*3/4 {
		block = block[:i]
	}
	for len(block) > 0 && !utf8.RuneStart(block[0]) {
		block = block[1:]
	}
	for n := 0; n < utf8.UTFMax && len(block) > 0; n++ { // a rune that was cut in two
		if r, size := utf8.DecodeLastRuneInString(block); r != utf8.RuneError || size != 1 {
			break
		}
		block = block[:len(block)-1]
	}
	return block
}

// shape is what a text weighs by its look: about its tokens in English, more or less in others; the sample tells how much.
func shape(text string) float64 {
	const (
		space = iota
		lower
		upper
		digit
		sign
		high
	)
	before, run, weight := sign, 0, 0.0
	for i := range len(text) {
		b := text[i]
		class := sign
		switch {
		case b >= 'a' && b <= 'z':
			class = lower
		case b >= 'A' && b <= 'Z':
			class = upper
		case b >= '0' && b <= '9':
			class = digit
		case b == ' ' || b == '\n' || b == '\t' || b == '\r':
			class = space
		case b >= 0x80:
			class = high
		}
		if class != before && (class != lower || before != upper || run > 1) {
			run = 0
		}
		run++
		switch class {
		case lower, upper:
			if run == 1 {
				weight += 0.9
			} else if run > 5 {
				weight += 0.2
			}
		case digit:
			if run%3 == 1 {
				weight++
			}
		case sign:
			if run%3 == 1 {
				weight += 0.9
			}
		case space:
			if run == 2 {
				weight += 0.7
			}
		case high:
			weight += 0.3
		}
		before = class
	}
	return weight + 0.01*float64(len(text))
}
