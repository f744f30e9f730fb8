package tokens

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"image"
	"image/gif"
	"image/jpeg"
	"image/png"
	"strings"
	"sync"
	"testing"

	"github.com/tollgate-dev/tollgate/services/gateway/internal/body"
)

// counter has every encoding, each as a model of that name.
var counter = sync.OnceValues(func() (*Counter, error) {
	e, errs := ParseEncodings(nil)
	for _, name := range known {
		e[name] = name
	}
	if len(errs) > 0 {
		return nil, errs[0]
	}
	return New(e)
})

func all(t testing.TB) *Counter {
	t.Helper()
	c, err := counter()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func count(t *testing.T, kind Kind, text string) Counted {
	t.Helper()
	got, err := all(t).Count(kind, "m", []byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return got
}

// tokensOf is a text's count, exact.
func tokensOf(t *testing.T, text string) int64 {
	t.Helper()
	n, estimated := all(t).CountText("m", text)
	if estimated {
		t.Fatal("estimated")
	}
	return n
}

// The counts are those that OpenAI's cookbook gives for tiktoken.
func TestTextCountsAsTiktokenCountsIt(t *testing.T) {
	for text, want := range map[string][4]int64{ // r50k, p50k, cl100k, o200k
		"antidisestablishmentarianism": {5, 5, 6, 6},
		"2 + 2 = 4":                    {5, 5, 7, 7},
		"お誕生日おめでとう":                    {14, 14, 9, 8},
		"":                             {},
	} {
		for i, encoding := range []string{"r50k_base", "p50k_base", "cl100k_base", "o200k_base"} {
			if got, estimated := all(t).CountText(encoding, text); got != want[i] || estimated {
				t.Errorf("%s %q: %d, want %d", encoding, text, got, want[i])
			}
		}
	}
}

// The cookbook's example, and what OpenAI's API counted for it.
func TestChatCountsAsTheAPICounted(t *testing.T) {
	const text = `{"messages":[{"role":"system","content":"You are a helpful, pattern-following assistant that translates corporate jargon into plain English."},
		{"role":"system","name":"example_user","content":"New synergies will help drive top-line growth."},
		{"role":"system","name":"example_assistant","content":"Things working well together will increase revenue."},
		{"role":"system","name":"example_user","content":"Let's circle back when we have more bandwidth to touch base on opportunities for increased leverage."},
		{"role":"system","name":"example_assistant","content":"Let's talk later when we're less busy about how to do better."},
		{"role":"user","content":"This late pivot means we don't have time to boil the ocean for the client deliverable."}]}`
	for model, want := range map[string]int64{"cl100k_base": 129, "o200k_base": 124} {
		if got, err := all(t).Count(Chat, model, []byte(text)); err != nil || got != (Counted{Tokens: want, Prompts: 1}) {
			t.Errorf("%s: %+v, %v, want %d", model, got, err, want)
		}
	}
}

func dataURL(media string, data []byte) string {
	return "data:" + media + ";base64," + base64.StdEncoding.EncodeToString(data)
}

func picture(t *testing.T, format string, w, h int) string {
	t.Helper()
	var b bytes.Buffer
	img := image.NewGray(image.Rect(0, 0, w, h))
	err := map[string]func() error{"png": func() error { return png.Encode(&b, img) }, "jpeg": func() error { return jpeg.Encode(&b, img, nil) },
		"gif": func() error { return gif.Encode(&b, img, nil) }}[format]()
	if err != nil {
		t.Fatal(err)
	}
	return dataURL("image/"+format, b.Bytes())
}

func TestWhatIsNoTextCountsByItsRule(t *testing.T) {
	blank := strings.Repeat("A", 4000) // 3,000 bytes
	message := func(parts string) string { return `{"messages":[{"role":"user","content":[` + parts + `]}]}` }
	img := func(url, more string) string {
		return fmt.Sprintf(`{"type":"image_url","image_url":{"url":%q%s}}`, url, more)
	}
	empty := count(t, Chat, message("")).Tokens
	for name, c := range map[string]struct {
		part string
		want int64
	}{
		"text":                     {`{"type":"text","text":"antidisestablishmentarianism"}`, 6},
		"text as it stands":        {`"antidisestablishmentarianism"`, 6},
		"a URL":                    {img("https://example.com/cat.png", ""), 765},
		"low":                      {img(picture(t, "png", 2000, 2000), `,"detail":"low"`), 85},
		"a tile":                   {img(picture(t, "png", 512, 512), ""), 85 + 170},
		"a pixel more":             {img(picture(t, "png", 513, 512), `,"detail":"high"`), 85 + 2*170},
		"1,024 square":             {img(picture(t, "jpeg", 1024, 1024), ""), 765},
		"2,048 by 4,096":           {img(picture(t, "png", 2048, 4096), `,"detail":"auto"`), 85 + 6*170}, // OpenAI's own example: 1105
		"a line":                   {img(picture(t, "gif", 4000, 1), ""), 85 + 4*170},
		"a broken image":           {img(dataURL("image/png", []byte("no image")), ""), 765},
		"an unknown format":        {img(dataURL("image/webp", []byte("RIFF")), ""), 765},
		"an image as a string":     {fmt.Sprintf(`{"type":"image_url","image_url":%q}`, picture(t, "png", 100, 100)), 255},
		"given twice":              {`{"type":"text","text":"antidisestablishmentarianism","text":"antidisestablishmentarianism"}`, 12},
		"wav":                      {`{"type":"input_audio","input_audio":{"data":"` + blank + `","format":"wav"}}`, 1},
		"mp3":                      {`{"type":"input_audio","input_audio":{"data":"` + blank + `","format":"mp3"}}`, 8},
		"a file":                   {`{"type":"file","file":{"file_data":"` + dataURL("application/pdf", make([]byte, 3000)) + `"}}`, 188},
		"a file by id":             {`{"type":"file","file":{"file_id":"file-1"}}`, 2000},
		"a blob in something new":  {`{"type":"video_url","video_url":{"url":"` + dataURL("video/mp4", make([]byte, 3000)) + `"}}`, 188},
		"text in something new":    {`{"type":"input_text","value":["antidisestablishmentarianism"]}`, 6},
		"numbers, true and null":   {`{"type":"text","text":null,"a":1,"b":true}`, 0},
		"an escaped data URL":      {`{"type":"image_url","image_url":{"url":"data:image\/png;base64,AAAA"}}`, 765},
		"text that begins as data": {`{"type":"text","text":"data: antidisestablishmentarianism"}`, 0},
	} {
		if name == "text that begins as data" {
			c.want = tokensOf(t, "data: antidisestablishmentarianism")
		}
		if got := count(t, Chat, message(c.part)).Tokens - empty; got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

func TestToolsAndCallsCountByTheirRule(t *testing.T) {
	base := count(t, Chat, `{"messages":[{"role":"user","content":"x"}]}`).Tokens
	for name, c := range map[string]struct {
		text string
		want int64
	}{
		"tools": {`{"messages":[{"role":"user","content":"x"}],"tools":[{"type": "function",
			"function": {"name": "now", "parameters": {}}}, {"type":"function"}]}`,
			16 + tokensOf(t, `{"type":"function","function":{"name":"now","parameters":{}}}`) + tokensOf(t, `{"type":"function"}`)},
		"functions":       {`{"messages":[{"role":"user","content":"x"}],"functions":[{"name":"now"}]}`, 8 + tokensOf(t, `{"name":"now"}`)},
		"response_format": {`{"response_format":{"type":"json_schema","json_schema":{"a":1}},"messages":[{"role":"user","content":"x"}]}`, tokensOf(t, `{"type":"json_schema","json_schema":{"a":1}}`)},
		"a call": {`{"messages":[{"role":"user","content":"x"},{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"now","arguments":"{\"a\":1}"}}]}]}`,
			3 + tokensOf(t, "assistant") + 3 + tokensOf(t, "call_1") + tokensOf(t, "function") + tokensOf(t, "now") + tokensOf(t, `{"a":1}`)},
		"its answer":       {`{"messages":[{"role":"user","content":"x"},{"role":"tool","tool_call_id":"call_1","content":"noon"}]}`, 3 + tokensOf(t, "tool") + tokensOf(t, "call_1") + tokensOf(t, "noon")},
		"an old call":      {`{"messages":[{"role":"user","content":"x","function_call":{"name":"now","arguments":"{}"}}]}`, 3 + tokensOf(t, "now") + tokensOf(t, "{}")},
		"what we know not": {`{"messages":[{"role":"user","content":"x","reasoning_content":"because"}],"n":3,"user":"somebody","metadata":{"a":"b"},"stop":["end"]}`, tokensOf(t, "because")},
	} {
		if got := count(t, Chat, c.text); got.Tokens-base != c.want || got.Prompts != 1 {
			t.Errorf("%s: %d, want %d", name, got.Tokens-base, c.want)
		}
	}
}

func TestCompletionsAndEmbeddings(t *testing.T) {
	word := tokensOf(t, "antidisestablishmentarianism")
	for in, want := range map[string]Counted{
		`"antidisestablishmentarianism"`:                                  {word, false, 1},
		`["antidisestablishmentarianism","antidisestablishmentarianism"]`: {2 * word, false, 2},
		`[1,2,3]`:       {3, false, 1},
		`[[1,2],[3,4]]`: {4, false, 2},
		`[]`:            {0, false, 1},
		`""`:            {0, false, 1},
	} {
		if got := count(t, Completion, `{"prompt":`+in+`}`); got != want {
			t.Errorf("prompt %s: %+v", in, got)
		}
		if got := count(t, Embedding, `{"input":`+in+`,"dimensions":7}`); got != want {
			t.Errorf("input %s: %+v", in, got)
		}
	}
	if got := count(t, Completion, `{"suffix":"antidisestablishmentarianism","prompt":""}`); got.Tokens != word {
		t.Errorf("%+v", got)
	}
}

func TestWhatNoServerCouldReadNamesTheField(t *testing.T) {
	for _, c := range []struct {
		kind        Kind
		text, field string
	}{
		{Chat, `{}`, "messages"}, {Chat, `{"messages":"x"}`, "messages"}, {Chat, `{"messages":null}`, "messages"}, {Chat, `{"messages":["x"]}`, "messages"},
		{Completion, `{"messages":[]}`, "prompt"}, {Completion, `{"prompt":null}`, "prompt"}, {Completion, `{"prompt":[{}]}`, "prompt"}, {Completion, `{"prompt":[["x"]]}`, "prompt"},
		{Embedding, `{"prompt":"x"}`, "input"}, {Embedding, `{"input":7}`, "input"},
	} {
		_, err := all(t).Count(c.kind, "m", []byte(c.text))
		var f *body.FieldError
		if !errors.As(err, &f) || f.Field != c.field {
			t.Errorf("%s: %v", c.text, err)
		}
	}
	for _, text := range []string{``, `[]`, `{`, `{"messages":[}`, `{"messages":[]} x`} {
		if got, err := all(t).Count(Chat, "m", []byte(text)); err == nil {
			t.Errorf("%q: %+v", text, got)
		}
	}
}

func TestBodyIsNotChanged(t *testing.T) {
	text := []byte(`{ "messages" : [ {"role":"user","content":"a\u0041\/"} ] , "tools":[ { "a" : 1 } ] }`)
	before := bytes.Clone(text)
	if _, err := all(t).Count(Chat, "m", text); err != nil || !bytes.Equal(before, text) {
		t.Errorf("%v\n%s", err, text)
	}
}

func TestBadEncodingsAreAllNamed(t *testing.T) {
	for _, c := range []struct {
		pairs []string
		n     int
	}{
		{nil, 0}, {[]string{"gpt-4:cl100k_base", "*:r50k_base"}, 0},
		{[]string{"gpt-4"}, 1}, {[]string{"gpt-4:klingon"}, 1}, {[]string{"a b:cl100k_base"}, 1}, {[]string{"a:cl100k_base", "a:cl100k_base"}, 1}, {[]string{"x", "y:z"}, 2},
	} {
		e, errs := ParseEncodings(c.pairs)
		if len(errs) != c.n || c.n == 0 && c.pairs != nil && (e["gpt-4"] != "cl100k_base" || e["*"] != "r50k_base") {
			t.Errorf("%v: %v %v", c.pairs, e, errs)
		}
	}
	if _, err := New(Encodings{"a": "klingon"}); err == nil {
		t.Error("an unknown encoding was loaded")
	}
	c, err := New(Encodings{"gpt-4": "cl100k_base", "*": "r50k_base"})
	if err != nil {
		t.Fatal(err)
	}
	for model, want := range map[string]int64{"gpt-4": 9, "llama": 14} {
		if got, _ := c.CountText(model, "お誕生日おめでとう"); got != want {
			t.Errorf("%s: %d", model, got)
		}
	}
}
