package proxy

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// Whatever comes, what is JSON to encoding/json is to the gateway, too, and what is kept of it is not much more than what came.
func FuzzAChunkIsReadWithinItsBounds(f *testing.F) {
	for _, s := range []string{word, last, `{"choices":[{"text":"a","index":1},{},{"finish_reason":"stop"}]} `, `{"id":1e400,"choices":{}}`, `{"choices":[{"delta":{"content":"\ud83d\ude00\ud800\u0000"}}]}`,
		"{\"choices\":[{\"text\":\"\xff\"}]}", `{"cho\u0069ces":[{"text":"x"}]}`, `[]`, `1`, `{}{}`, `{"a":[[[]]]`, `{"choices":[null,5,"x",[],{"index":null,"text":null,"delta":null}]}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var c chunk
		err := c.read([]byte(s))
		if (err == nil) != json.Valid([]byte(s)) && len(s) < 10_000 { // nesting of more is refused here
			t.Fatalf("%q: %v", s, err)
		}
		if len(c.text) > 3*len(s) || len(c.Said) > 1+len(s)/10 || c.Choices > len(s) {
			t.Fatalf("%q: %d bytes of text, %d of %d answers", s, len(c.text), len(c.Said), c.Choices)
		}
		at := 0
		for _, ch := range c.Said {
			if ch.from < at || ch.to < ch.from || ch.to > len(c.text) {
				t.Fatalf("%q: %+v of %d bytes", s, c.Said, len(c.text))
			}
			at = ch.to
		}
	})
}

// A text reaches the count as encoding/json would have decoded it.
func TestTextsAreDecodedAsEncodingJSONDoes(t *testing.T) {
	for _, quoted := range []string{`""`, `"a\u0000b"`, `"\ud83d\ude00"`, `"\ud800"`, `"\ud800\ud800x"`, "\"\xff\"", "\"\xe2\x82\"", `"\/\b\n\""`, `"\u00e9é"`} {
		var want string
		if err := json.Unmarshal([]byte(quoted), &want); err != nil {
			t.Fatal(err)
		}
		for _, field := range []string{`"text":%s`, `"delta":{"content":%s}`, `"message":{"tool_calls":[{"function":{"arguments":%s}}]}`, `"d\u0065lta":{"\u0063ontent":[7,{"text":%s}]}`} {
			var c chunk
			if err := c.read(fmt.Appendf(nil, `{"choices":[{"index":3,`+field+`}]}`, quoted)); err != nil || c.of(c.Said[0]) != want || c.Said[0].Index != 3 {
				t.Errorf("%s in %s: %q, %+v, %v", quoted, field, c.text, c.Said, err)
			}
		}
	}
}

// A server can't make an answer cost many times its bytes.
func TestAnAnswerOfManySmallThingsIsNotKeptLarge(t *testing.T) {
	for _, piece := range []string{`{}`, `[]`, `{"index":7}`, `{"delta":{"content":[{},{},{}],"tool_calls":[{},{}]}}`, `{"text":"x"}`, `{"finish_reason":"s"}`} {
		text := `{"choices":[` + strings.Repeat(piece+",", 100_000) + `{}]}`
		var c chunk
		if err := c.read([]byte(text)); err != nil || c.Choices != 100_001 {
			t.Fatalf("%s: %d answers, %v", piece, c.Choices, err)
		}
		if kept := cap(c.text) + cap(c.Said)*int(reflect.TypeFor[choice]().Size()); kept > 5*len(text) {
			t.Errorf("%s: %d bytes are kept of %d", piece, kept, len(text))
		}
	}
}
