package tokens

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// A prompt of some 100,000 tokens. Yardsticks in the same run: encoding/json checks the same body, and the codec counts all of it.
func BenchmarkCount(b *testing.B) {
	c := all(b)
	for _, name := range []string{"prose", "go", "chinese"} {
		text := texts(b)[name]
		for len(text) < 1<<20 {
			text += text
		}
		n, err := c.codec("m").Count(text[:100<<10])
		if err != nil {
			b.Fatal(err)
		}
		text = strings.ToValidUTF8(text[:min(len(text), 100_000*(100<<10)/n)], "")
		quoted, err := json.Marshal(text)
		if err != nil {
			b.Fatal(err)
		}
		long := []byte(`{"model":"m","messages":[{"role":"user","content":` + string(quoted) + `}]}`)
		short, err := json.Marshal(text[:ExactBytes-100])
		if err != nil {
			b.Fatal(err)
		}
		largest := []byte(`{"model":"m","messages":[{"role":"user","content":` + strings.ToValidUTF8(string(short), "") + `}]}`)
		for _, m := range []struct {
			what string
			do   func()
		}{
			{"100,000 tokens", func() { _, err = c.Count(Chat, "m", long) }},
			{"the longest exact", func() { _, err = c.Count(Chat, "m", largest) }},
			{"yardstick: json.Valid", func() { json.Valid(long) }},
			{"yardstick: all exact", func() { _, err = c.codec("m").Count(text) }},
		} {
			b.Run(name+"/"+m.what, func(b *testing.B) {
				b.SetBytes(int64(len(long)))
				for b.Loop() {
					m.do()
				}
				if err != nil {
					b.Fatal(err)
				}
			})
		}
	}
}

func BenchmarkHostile(b *testing.B) {
	for _, piece := range []string{"a", " ", "!", "\xff", "漢"} {
		text := strings.Repeat(piece, ExactBytes/len(piece))
		b.Run(fmt.Sprintf("%q", piece), func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				all(b).CountText("m", text)
			}
		})
	}
}

// One token of a stream: added, and counted each 16.
func BenchmarkStream(b *testing.B) {
	words := strings.SplitAfter(texts(b)["prose"], " ")
	in, i := all(b).NewText("m"), 0
	for b.Loop() {
		in.Add(words[i%len(words)])
		if i++; i%16 == 0 {
			in.Tokens()
		}
	}
}
