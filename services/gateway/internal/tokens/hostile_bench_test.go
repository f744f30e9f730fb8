package tokens

import (
	"fmt"
	"strings"
	"testing"
)

// What a client's body, or a stream's pieces, can make the gateway spend before anything is decided, per byte. Each comes in two sizes: the time per byte
// must not grow with it. Yardstick: a body of prose.
func BenchmarkHostileBody(b *testing.B) {
	for _, c := range []struct {
		name, begin, piece, end string
		kind                    Kind
	}{
		{"yardstick", `{"messages":[{"role":"user","content":"`, "some words ", `"}]}`, Chat},
		{"messages", `{"messages":[`, `{},`, `{}]}`, Chat},
		{"parts", `{"messages":[{"content":[`, `{},`, `{}]}]}`, Chat},
		{"short parts", `{"messages":[{"content":[`, `{"text":"a"},`, `{}]}]}`, Chat},
		{"strings", `{"messages":[{"content":{"a":[`, `"a",`, `""]}}]}`, Chat},
		{"images", `{"messages":[{"content":[`, `{"image_url":""},`, `{}]}]}`, Chat},
		{"tools", `{"messages":[],"tools":[`, `{},`, `{}]}`, Chat},
		{"calls", `{"messages":[{"tool_calls":[`, `{},`, `{}]}]}`, Chat},
		{"messages again and again", `{`, `"messages":[{}],`, `"a":1}`, Chat},
		{"prompts", `{"input":[`, `"",`, `""]}`, Embedding},
		{"token ids", `{"input":[`, `[1],`, `[1]]}`, Embedding},
		{"unknown fields", `{`, `"a":1,`, `"messages":[]}`, Chat},
		{"spaces", `{"messages":[{"role":"user","content":"`, ` \n`, `"}]}`, Chat},
		{"one word", `{"messages":[{"role":"user","content":"`, `a`, `"}]}`, Chat},
		{"escapes", `{"messages":[{"role":"user","content":"`, `\ud800`, `"}]}`, Chat},
	} {
		for _, size := range []int{256 << 10, 4 << 20} {
			text := []byte(c.begin + strings.Repeat(c.piece, size/len(c.piece)) + c.end)
			b.Run(fmt.Sprintf("%s/%dk", c.name, size>>10), func(b *testing.B) {
				b.SetBytes(int64(len(text)))
				b.ReportAllocs()
				for b.Loop() {
					if _, err := all(b).Count(c.kind, "m", text); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// A text that comes in pieces of a byte. Yardstick: words, which can be settled as they come.
func BenchmarkHostilePieces(b *testing.B) {
	for name, text := range map[string]string{"yardstick": strings.Repeat("some words ", 6000), "one word": strings.Repeat("x", 66_000), "signs": strings.Repeat("!", 66_000), "spaces": strings.Repeat(" \n", 33_000)} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				in := all(b).NewText("m")
				for i := range len(text) {
					in.Add(text[i : i+1])
				}
				in.Tokens()
			}
		})
	}
}
