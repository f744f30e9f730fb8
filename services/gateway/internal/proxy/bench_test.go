package proxy

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/tollgate-dev/tollgate/services/gateway/internal/tokens"
)

// What a server can make the gateway spend on an event or a whole answer, per byte. Each text comes in two sizes: the time per byte must not grow with it.
// Yardstick: an answer of plain text of the same size.
func BenchmarkHostileAnswer(b *testing.B) {
	for _, c := range []struct{ name, begin, piece, end string }{
		{"yardstick", `{"choices":[{"message":{"content":"`, "some words ", `"}}],"usage":{}}`},
		{"usage again and again", `{`, `"usage":{"prompt_tokens":1},`, `"choices":[]}`},
		{"usage, escaped", `{`, `"\u0075s\u0061ge":{"prompt_tokens":1},`, `"choices":[]}`},
		{"usage of many members", `{"usage":{`, `"a":{},`, `"b":1},"choices":[]}`},
		{"a long figure", `{"usage":{"completion_tokens":1`, `0123456789`, `},"choices":[]}`},
		{"many choices", `{"choices":[`, `{},`, `{}],"usage":{}}`},
		{"many parts", `{"choices":[{"message":{"content":[`, `{},`, `{}]}}],"usage":{}}`},
		{"many short parts", `{"choices":[{"message":{"content":[`, `{"text":"x"},`, `{}]}}],"usage":{}}`},
		{"many calls", `{"choices":[{"message":{"tool_calls":[`, `{},`, `{}]}}],"usage":{}}`},
		{"many names", `{"choices":[{"message":{"content":{`, `"a":1,"b":[],`, `"c":{}}}}],"usage":{}}`},
		{"choices again and again", `{`, `"choices":[{"text":"x"}],`, `"usage":{}}`},
		{"brackets", `{"x":[`, `[],`, `[]],"usage":{}}`},
		{"one word", `{"choices":[{"message":{"content":"`, "x", `"}}],"usage":{}}`},
		{"spaces", `{"choices":[{"message":{"content":"`, ` \n`, `"}}],"usage":{}}`},
	} {
		for _, size := range []int{256 << 10, 2 << 20} {
			text := []byte(c.begin + strings.Repeat(c.piece, size/len(c.piece)) + c.end)
			b.Run(fmt.Sprintf("%s/%dk", c.name, size>>10), func(b *testing.B) {
				b.SetBytes(int64(len(text)))
				b.ReportAllocs()
				for b.Loop() {
					m := meter{newText: func() *tokens.Text { return counter().NewText("grok-2") }, choices: 1}
					m.whole(text)
					withoutUsage(text)
				}
			})
		}
	}
}

func BenchmarkHostileStream(b *testing.B) {
	for _, c := range []struct{ name, begin, piece, end string }{
		{"yardstick", "", "data: some words and some more\n\n", ""},
		{"empty events", "", "\n", ""},
		{"empty events, CR", "", "\r", ""},
		{"CRLF", "", ":\r\n", ""},
		{"comments, then data", strings.Repeat(":\n", maxLines/2), "data\n", "\n"},
		{"one event of one line", "data:", "x", "\n\n"},
	} {
		for _, size := range []int{32 << 10, 256 << 10} {
			if strings.HasPrefix(c.name, "comments") {
				size = min(size, maxLines/2*5-10)
			}
			text := c.begin + strings.Repeat(c.piece, size/len(c.piece)) + c.end
			b.Run(fmt.Sprintf("%s/%dk", c.name, size>>10), func(b *testing.B) {
				b.SetBytes(int64(len(text)))
				b.ReportAllocs()
				for b.Loop() {
					e := newEvents(strings.NewReader(text))
					for e.next() == nil {
						e.more()
					}
				}
			})
		}
	}
}

// An event as most servers send them, token by token. Yardstick: it is only checked for being JSON.
func BenchmarkEvent(b *testing.B) {
	data := []byte(`{"id":"chatcmpl-7f3b","object":"chat.completion.chunk","created":1700000000,"model":"grok-2","choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}],"usage":null}`)
	for name, do := range map[string]func() bool{
		"read":      func() bool { var c chunk; return c.read(data) == nil && c.of(c.Said[0]) == " token" },
		"yardstick": func() bool { return json.Valid(data) },
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				if !do() {
					b.Fatal("not read")
				}
			}
		})
	}
}
