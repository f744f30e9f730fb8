package proxy

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tollgate-dev/tollgate/services/gateway/internal/tokens"
)

// says are the events of a stream: texts as chunks, all else (which begins with a brace) as it is, and [DONE].
func says(events ...string) string {
	var b strings.Builder
	for _, e := range events {
		if !strings.HasPrefix(e, "{") {
			e = fmt.Sprintf(`{"id":"x","choices":[{"index":0,"delta":{"content":%q}}]}`, e)
		}
		b.WriteString("data: " + e + "\n\n")
	}
	return b.String()
}

func usageOf(usage string) string { return `{"id":"x","choices":[],"usage":` + usage + `}` }

const stop = `{"id":"x","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`

// words are so many chunks of a token each.
func words(n int) []string {
	var out []string
	for i := range n {
		out = append(out, []string{" one", " two", " red"}[i%3])
	}
	return out
}

// B32, its kind: whatever a server says instead of figures, its output is billed: by figures that are sound, by counting where they are not.
func TestB32OnlySoundFiguresAreBilled(t *testing.T) {
	w := newWorld(t, nil)
	w.ask(chatPath, hello+`,"x_sim":{"usage":"none"}}`)
	input := w.recorded().InputTokens
	if input < 5 {
		t.Fatal(input)
	}
	const sound = `{"prompt_tokens":16,"completion_tokens":7,"total_tokens":23}`
	for name, c := range map[string]struct {
		usage            []string
		in, cached, out  int64
		estimated        bool
		streamed, before bool // of streams only; told before the text, else after it
	}{
		"sound":                    {usage: []string{sound}, in: 16, out: 7},
		"floats":                   {usage: []string{`{"prompt_tokens":16.0,"completion_tokens":7e0,"prompt_tokens_details":{"cached_tokens":4.0}}`}, in: 16, cached: 4, out: 7},
		"an exponent":              {usage: []string{`{"prompt_tokens":1.6e1,"completion_tokens":70e-1}`}, in: 16, out: 7},
		"strings":                  {usage: []string{`{"prompt_tokens":"16","completion_tokens":"7.0"}`}, in: 16, out: 7},
		"no whole number":          {usage: []string{`{"prompt_tokens":16,"completion_tokens":7.5}`}, in: 16, out: 10, estimated: true},
		"words":                    {usage: []string{`{"prompt_tokens":"many","completion_tokens":""}`}, in: input, out: 10, estimated: true},
		"strings of Go":            {usage: []string{`{"prompt_tokens":"0x10","completion_tokens":"+7"}`}, in: input, out: 10, estimated: true},
		"negative":                 {usage: []string{`{"prompt_tokens":-16,"completion_tokens":-7}`}, in: input, out: 10, estimated: true},
		"too large":                {usage: []string{`{"prompt_tokens":9007199254740993,"completion_tokens":1e300}`}, in: input, out: 10, estimated: true},
		"no completion":            {usage: []string{`{"prompt_tokens":16,"total_tokens":16}`}, in: 16, out: 10, estimated: true},
		"null":                     {usage: []string{`{"prompt_tokens":16,"completion_tokens":null}`}, in: 16, out: 10, estimated: true},
		"no prompt":                {usage: []string{`{"completion_tokens":7}`}, in: input, out: 7, estimated: true},
		"zeros":                    {usage: []string{`{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}`}, in: input, out: 10, estimated: true},
		"nothing":                  {usage: []string{`{}`}, in: input, out: 10, estimated: true},
		"a list":                   {usage: []string{`[16,7]`}, in: input, out: 10, estimated: true},
		"a number":                 {usage: []string{`16`}, in: input, out: 10, estimated: true},
		"details that are a list":  {usage: []string{`{"prompt_tokens":16,"completion_tokens":7,"prompt_tokens_details":[]}`}, in: 16, out: 7},
		"more cached than there":   {usage: []string{`{"prompt_tokens":16,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":20}}`}, in: 16, cached: 16, out: 7},
		"sound, then zeros":        {usage: []string{sound, `{"prompt_tokens":0,"completion_tokens":0}`}, in: 16, out: 7, streamed: true},
		"sound, then nothing":      {usage: []string{sound, `{}`}, in: 16, out: 7, streamed: true},
		"sound, then null":         {usage: []string{sound, `null`}, in: 16, out: 7, streamed: true},
		"sound, then nonsense":     {usage: []string{sound, `{"prompt_tokens":"a","completion_tokens":{}}`}, in: 16, out: 7, streamed: true},
		"sound, then less":         {usage: []string{sound, `{"prompt_tokens":1,"completion_tokens":1}`}, in: 16, out: 7, streamed: true},
		"sound, twice":             {usage: []string{sound, sound}, in: 16, out: 7, streamed: true},
		"sound, then prompt only":  {usage: []string{sound, `{"prompt_tokens":17}`}, in: 17, out: 7, streamed: true},
		"growing":                  {usage: []string{`{"prompt_tokens":16,"completion_tokens":3}`, sound}, in: 16, out: 7, streamed: true},
		"before: prompt only":      {usage: []string{`{"prompt_tokens":16}`}, in: 16, out: 10, estimated: true, streamed: true, before: true},
		"before: no output yet":    {usage: []string{`{"prompt_tokens":16,"completion_tokens":0}`}, in: 16, out: 10, estimated: true, streamed: true, before: true},
		"before: thought, unheard": {usage: []string{`{"prompt_tokens":16,"completion_tokens":500}`}, in: 16, out: 510, estimated: true, streamed: true, before: true},
	} {
		text := words(10)
		var totals []string
		for _, u := range c.usage {
			totals = append(totals, usageOf(u))
		}
		all := append(append(append([]string{}, text...), stop), totals...)
		if c.before {
			all = append(append(append([]string{}, totals...), text...), stop)
		}
		bodies := map[string]http.HandlerFunc{"stream": sends(says(all...)+"data: [DONE]\n\n", 1<<20), "stream without [DONE]": sends(says(all...), 1<<20)}
		if !c.streamed {
			whole := fmt.Sprintf(`{"id":"x","choices":[{"index":"0","message":{"content":%q},"finish_reason":"stop"}],"usage":%s,"Usage":{"completion_tokens":9}}`, strings.Join(text, ""), c.usage[0])
			bodies["whole"] = func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(whole)) }
		}
		for kind, h := range bodies {
			w := newWorld(t, from(t, h))
			w.ask(chatPath, hello+map[bool]string{true: `}`, false: `,"stream":true}`}[kind == "whole"])
			if r := w.recorded(); r.InputTokens != c.in || r.OutputTokens != c.out || r.CachedInputTokens != c.cached || r.Estimated != c.estimated || r.Outcome != "completed" {
				t.Errorf("%s, %s: %d (%d cached) and %d, estimated %t, %s; want %d (%d) and %d, estimated %t", name, kind, r.InputTokens, r.CachedInputTokens, r.OutputTokens, r.Estimated, r.Outcome, c.in, c.cached, c.out, c.estimated)
			}
		}
	}
}

// An embedding has no output, and its usage need not say so.
func TestEmbeddingsNeedNoOutputFigure(t *testing.T) {
	w := newWorld(t, nil)
	w.ask("/v1/embeddings", `{"model":"grok-2","input":"a","x_sim":{"prompt":8}}`)
	if r := w.recorded(); r.InputTokens != 8 || r.OutputTokens != 0 || r.Estimated {
		t.Errorf("%+v", r)
	}
}

// B28, its kind: an early total does not switch metering off. What came after it is billed when the client leaves, and so it is when the server breaks off.
func TestB28TextAfterAnEarlyTotalIsBilled(t *testing.T) {
	early := func(content string, n int) string {
		return fmt.Sprintf(`{"id":"x","choices":[{"index":0,"delta":{"role":"assistant","content":%q}}],"usage":{"prompt_tokens":16,"completion_tokens":%d}}`, content, n)
	}
	each := func(total func(i int) int) (out []string) {
		for i, text := range words(40) {
			out = append(out, early(text, total(i)))
		}
		return out
	}
	for name, c := range map[string]struct {
		events    []string
		out       int64
		estimated bool
	}{
		"0 in the first chunk":      {append([]string{early("", 0)}, words(40)...), 40, true},
		"1 in the first chunk":      {append([]string{early("a", 1)}, words(40)...), 41, true},
		"prompt in the first chunk": {append([]string{usageOf(`{"prompt_tokens":16}`)}, words(40)...), 40, true},
		"a total in the middle":     {append(append(words(20), usageOf(`{"prompt_tokens":16,"completion_tokens":100}`)), words(20)...), 120, true},
		"1 in every chunk":          {each(func(int) int { return 1 }), 40, true},
		"0 in every chunk":          {each(func(int) int { return 0 }), 40, true},
		"a total in every chunk":    {each(func(i int) int { return i + 1 }), 40, false},
		"two choices' own totals":   {each(func(i int) int { return i/2 + 1 }), 40, true},
		"totals that lag by one":    {each(func(i int) int { return i }), 40, true},
		"a total after the end":     {append(append(words(40), stop), usageOf(`{"prompt_tokens":16,"completion_tokens":12}`)), 12, false},
	} {
		for _, leaves := range []bool{true, false} {
			release := make(chan struct{})
			w := newWorld(t, from(t, func(rw http.ResponseWriter, r *http.Request) {
				sends(says(c.events...), 1<<20)(rw, r)
				select {
				case <-release:
					panic(http.ErrAbortHandler)
				case <-r.Context().Done():
				}
			}))
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			req, _ := http.NewRequestWithContext(ctx, http.MethodPost, w.url+chatPath, strings.NewReader(hello+`,"stream":true,"stream_options":{"include_usage":true},"max_tokens":1000}`))
			req.Header.Set("Authorization", "Bearer k1")
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(resp.Body)
			for range 2 * len(c.events) {
				lines.Scan()
			}
			outcome := "failed"
			if leaves {
				outcome = "cancelled"
				cancel()
			} else {
				close(release)
			}
			r := w.recorded()
			_ = resp.Body.Close()
			cancel()
			if r.InputTokens != 16 || r.OutputTokens != c.out || r.Estimated != c.estimated || r.Outcome != outcome {
				t.Errorf("%s: %d and %d, estimated %t, %s; want 16 and %d, %s", name, r.InputTokens, r.OutputTokens, r.Estimated, r.Outcome, c.out, outcome)
			}
		}
	}
}

// An early total does not stop a stream's draws, either.
func TestB28AStreamWithAnEarlyTotalDrawsAndEndsWithItsQuota(t *testing.T) {
	events := append([]string{`{"id":"x","choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"usage":{"prompt_tokens":16,"completion_tokens":1}}`}, words(3000)...)
	w := newWorld(t, func(o *Options) { o.Predicted = 100; from(t, sends(says(events...)+"data: [DONE]\n\n", 1<<20))(o) })
	left := int64(400)
	w.e.consume = func(n int64) string {
		left -= n
		return fmt.Sprintf(`{"allowed":%t}`, left > 0)
	}
	_, body := w.ask(chatPath, hello+`,"stream":true}`)
	r := w.recorded()
	if n := strings.Count(body, "data:"); n > 600 || !strings.Contains(body, `"finish_reason":"length"`) || r.OutputTokens < 400 || r.OutputTokens > 600 || !r.Estimated || r.InputTokens != 16 {
		t.Errorf("%d events, %+v", n, r)
	}
}

// Text is counted wherever a server puts it.
func TestB28AllTextIsCounted(t *testing.T) {
	const text = "thinking hard about all of it"
	want := func() int64 { c := counter().NewText("grok-2"); c.Add(text); return c.Tokens() }()
	if want < 5 {
		t.Fatal(want)
	}
	quoted := fmt.Sprintf("%q", text)
	for _, delta := range []string{
		`"content":` + quoted, `"content":[{"type":"text","text":` + quoted + `}]`, `"reasoning_content":` + quoted, `"reasoning":` + quoted, `"reasoning":{"text":` + quoted + `}`,
		`"reasoning":{"summary":[{"text":` + quoted + `}]}`, `"reasoning_content":[{"thinking":` + quoted + `}]`, `"refusal":` + quoted, `"audio":{"id":"a","transcript":` + quoted + `,"data":"QUJD"}`,
		`"tool_calls":[{"index":0,"id":"a","function":{"arguments":` + quoted + `}}]`, `"function_call":{"arguments":` + quoted + `}`,
	} {
		for _, field := range []string{"delta", "message"} {
			answer := fmt.Sprintf(`{"id":"x","choices":[{"index":0,%q:{%s},"finish_reason":"stop"}]}`, field, delta)
			h, stream := sends("data: "+answer+"\n\ndata: [DONE]\n\n", 1<<20), `,"stream":true}`
			if field == "message" {
				h, stream = func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(answer)) }, `}`
			}
			w := newWorld(t, from(t, h))
			w.ask(chatPath, hello+stream)
			if r := w.recorded(); r.OutputTokens != want || !r.Estimated {
				t.Errorf("%s: %d tokens, estimated %t, want %d", answer, r.OutputTokens, r.Estimated, want)
			}
		}
	}
}

// The largest figures of both kinds can be billed together.
func TestTheLargestFiguresStayExact(t *testing.T) {
	m := meter{newText: func() *tokens.Text { return counter().NewText("grok-2") }}
	var u figures
	_ = u.UnmarshalJSON([]byte(`{"prompt_tokens":4503599627370495,"completion_tokens":"4503599627370495"}`))
	m.tell(all, u)
	m.ended = true
	if n, told := m.produced(); n != 1<<52-1 || !told || m.input.n != 1<<52-1 {
		t.Error(n, told, m.input)
	}
}

// B32, its kind: with several answers to a request, what is settled is the server's own count, of all of them, in whichever way it tells it.
func TestB32UsageOfSeveralAnswersIsTheServersOwnCount(t *testing.T) {
	for _, usage := range []string{"", "each", "finish", "each choice", "finish choice"} {
		for _, n := range []int{1, 2, 3, 8} {
			for _, length := range []int{1, 2, 40} {
				for _, stream := range []bool{true, false} {
					w := newWorld(t, nil)
					resp, _ := w.ask(chatPath, hello+fmt.Sprintf(`,"n":%d,"max_tokens":1000,"stream":%t,"x_sim":{"prompt":16,"tokens":%d,"usage":%q}}`, n, stream, length, usage))
					r, a := w.recorded(), w.up.Answers()[resp.Header.Get("X-Request-Id")]
					if !a.Told || a.Produced != n*length || r.OutputTokens != int64(a.Produced) || r.InputTokens != 16 || r.Estimated || r.Outcome != "completed" {
						t.Errorf("usage %q, %d answers of %d tokens, stream %t: %+v; the server produced %d", usage, n, length, stream, r, a.Produced)
					}
				}
			}
		}
	}
}

// A server's totals are of one answer or of all: it can't be asked, and both are read right, also when the stream is cut, when tokens come several at
// once, and when one answer ends long before the other.
func TestB32TotalsOfOneAnswerAndOfAllAreToldApart(t *testing.T) {
	// chunk is so many tokens of an answer, of four letters each, and a total.
	chunk := func(index, tokens, total int) string {
		return fmt.Sprintf(`{"id":"x","choices":[{"index":%d,"delta":{"content":%q}}],"usage":{"prompt_tokens":16,"completion_tokens":%d}}`, index, strings.Repeat(" one", tokens), total)
	}
	turns := func(n, rounds, step int, ofAll bool) (out []string) {
		for i := range rounds {
			for c := range n {
				total := step * (i + 1)
				if ofAll {
					total = step * (i*n + c + 1)
				}
				out = append(out, chunk(c, step, total))
			}
		}
		return out
	}
	var after []string // one answer, then the other
	for c, length := range []int{40, 10} {
		for i := range length {
			after = append(after, chunk(c, 1, i+1))
		}
	}
	ends := func(n int) (out []string) {
		for c := range n {
			out = append(out, fmt.Sprintf(`{"id":"x","choices":[{"index":%d,"delta":{},"finish_reason":"stop"}]}`, c))
		}
		return out
	}
	for name, c := range map[string]struct {
		n      int
		events []string
		want   int64
	}{
		"each one's":                   {2, turns(2, 50, 1, false), 100},
		"of all":                       {2, turns(2, 50, 1, true), 100},
		"each one's, three at once":    {4, turns(4, 20, 3, false), 240},
		"of all, three at once":        {4, turns(4, 20, 3, true), 240},
		"each one's, after another":    {2, after, 50},
		"each one's, then that of all": {2, append(turns(2, 50, 1, false), usageOf(`{"prompt_tokens":16,"completion_tokens":100}`)), 100},
		"more answers than asked for":  {2, turns(5, 20, 1, true), 100},
		"an index below 0":             {2, append(turns(1, 50, 1, true), chunk(-7, 1, 51)), 51},
	} {
		for _, cut := range []bool{true, false} {
			events, outcome := c.events, "failed"
			if !cut {
				events, outcome = append(append([]string{}, events...), ends(c.n)...), "completed"
			}
			w := newWorld(t, from(t, sends(says(events...), 1<<20)))
			w.ask(chatPath, hello+fmt.Sprintf(`,"stream":true,"n":%d,"max_tokens":1000}`, c.n))
			if r := w.recorded(); r.OutputTokens != c.want || r.InputTokens != 16 || r.Estimated || r.Outcome != outcome {
				t.Errorf("%s, cut %t: %+v, want %d", name, cut, r, c.want)
			}
		}
	}
}
