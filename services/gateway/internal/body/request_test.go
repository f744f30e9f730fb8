package body_test

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/tollgate-dev/tollgate/services/gateway/internal/body"
)

func edited(t *testing.T, text string, edit func(*body.Request)) string {
	t.Helper()
	r, err := body.Parse([]byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	edit(r)
	rd, n := r.Open()
	b, err := io.ReadAll(rd)
	if err != nil || int64(len(b)) != n {
		t.Fatalf("%d bytes of %d, %v", len(b), n, err)
	}
	return string(b)
}

func TestOnlyTheNamedBytesChange(t *testing.T) {
	both := func(r *body.Request) { r.AskForUsage(); r.SetModel("small") }
	for in, want := range map[string]string{
		`{"model":"big"}`: `{"model":"small"}`,
		`{ "seed" : 9007199254740993,"model":"big" , "temperature":0.10}`:                       `{ "seed" : 9007199254740993,"model":"small" , "temperature":0.10}`,
		`{"model":"big","stream":false,"stream_options":{"x":1}}`:                               `{"model":"small","stream":false,"stream_options":{"x":1}}`,
		`{"model":"big","stream":true}`:                                                         `{"stream_options":{"include_usage":true},"model":"small","stream":true}`,
		`{"stream_options":null,"model":"big","stream":true}`:                                   `{"stream_options":{"include_usage":true},"model":"small","stream":true}`,
		`{"model":"big","stream":true,"stream_options":{}}`:                                     `{"model":"small","stream":true,"stream_options":{"include_usage":true}}`,
		`{"model":"big","stream":true,"stream_options":{ "x" : [ 1 ] }}`:                        `{"model":"small","stream":true,"stream_options":{"include_usage":true, "x" : [ 1 ] }}`,
		`{"model":"big","stream":true,"stream_options":{"include_usage" : false,"y":"\u2028"}}`: `{"model":"small","stream":true,"stream_options":{"include_usage" : true,"y":"\u2028"}}`,
		`{"model":"big","stream":true,"stream_options":{"include_usage":null}}`:                 `{"model":"small","stream":true,"stream_options":{"include_usage":true}}`,
		`{"model":"big","stream":true,"stream_options":{"include_usage":true}}`:                 `{"model":"small","stream":true,"stream_options":{"include_usage":true}}`,
		"\n{\"m\u00f6del\":\"\xff\",\"mod\\u0065l\":\"b\\u0069g\",\"a\":1,\"a\":2}\n":           "\n{\"m\u00f6del\":\"\xff\",\"mod\\u0065l\":\"small\",\"a\":1,\"a\":2}\n",
	} {
		if got := edited(t, in, both); got != want {
			t.Errorf("%s\nbecame %s\nwant   %s", in, got, want)
		}
		if got := edited(t, in, func(*body.Request) {}); got != in {
			t.Errorf("%s\nbecame %s without an edit", in, got)
		}
	}
}

func TestWhatIsActedOnIsRead(t *testing.T) {
	r, err := body.Parse([]byte(`{"n":3,"best_of":2,"max_tokens":100,"max_completion_tokens":40,"stream":true,"model":"b\u0069g","stream_options":{"include_usage":true}}`))
	if err != nil || r.Model != "big" || !r.Stream || !r.IncludeUsage || *r.MaxTokens != 100 || r.Choices != 3 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestAFieldThatServersReadDifferentlyIsRefused(t *testing.T) {
	for in, field := range map[string]string{
		`{"model":"a","model":"b"}`:                          "model",
		`{"model":"a","mod\u0065l":"b"}`:                     "model",
		`{"model":"a","MODEL":"b"}`:                          "model",
		`{"Model":"b"}`:                                      "model",
		`{"model":"a","max_tokens":1,"max_tokens":9}`:        "max_tokens",
		`{"model":"a","Max_Tokens":9}`:                       "max_tokens",
		`{"model":"a","\u017ftream":true}`:                   "stream",
		`{"model":"a","messages":[],"messages":[]}`:          "messages",
		`{"model":7}`:                                        "model",
		`{"model":""}`:                                       "model",
		`{"model":"a b"}`:                                    "model",
		`{"model":"tg-secret"}`:                              "model",
		`{}`:                                                 "model",
		`{"model":"a","stream":"yes"}`:                       "stream",
		`{"model":"a","max_tokens":-1}`:                      "max_tokens",
		`{"model":"a","max_tokens":1.5}`:                     "max_tokens",
		`{"model":"a","max_tokens":1e3}`:                     "max_tokens",
		`{"model":"a","max_tokens":99999999999999999999}`:    "max_tokens",
		`{"model":"a","max_tokens":1e400}`:                   "max_tokens",
		`{"model":"a","max_tokens":9007199254740992}`:        "max_tokens",
		`{"model":"a","max_tokens":"50"}`:                    "max_tokens",
		`{"model":"a","max_tokens":true}`:                    "max_tokens",
		`{"model":"a","max_tokens":[10]}`:                    "max_tokens",
		`{"model":"a","max_completion_tokens":-1}`:           "max_completion_tokens",
		`{"model":"a","n":0}`:                                "n",
		`{"model":"a","n":-0}`:                               "n",
		`{"model":"a","n":-1}`:                               "n",
		`{"model":"a","n":1.0}`:                              "n",
		`{"model":"a","best_of":0}`:                          "best_of",
		`{"model":"a","stream":1}`:                           "stream",
		`{"model":"a","n":"2"}`:                              "n",
		`{"model":"a","stream_options":[]}`:                  "stream_options",
		`{"model":"a","stream_options":{"include_usage":1}}`: "stream_options.include_usage",
		`{"model":"a","stream_options":{"include_usage":true,"Include_Usage":false}}`: "stream_options.include_usage",
	} {
		_, err := body.Parse([]byte(in))
		var f *body.FieldError
		if !errors.As(err, &f) || f.Field != field {
			t.Errorf("%s: %v, want an error of %s", in, err, field)
		}
	}
	for _, in := range []string{"", "[]", "null", `{"model":"a"`, `{"model":"a"} x`, `{"model":"a",}`, `{"model":"a","x":01}`,
		`{"model":"a","x":` + strings.Repeat("[", 1<<20)} {
		if _, err := body.Parse([]byte(in)); err == nil {
			t.Errorf("%.40s was taken", in)
		}
	}
}

func FuzzAnUneditedBodyStaysAsItIs(f *testing.F) {
	f.Add(`{"model":"a","stream":true,"stream_options":{"include_usage":false}}`)
	f.Fuzz(func(t *testing.T, in string) {
		r, err := body.Parse([]byte(in))
		if err != nil {
			return
		}
		rd, _ := r.Open()
		if b, _ := io.ReadAll(rd); string(b) != in {
			t.Fatalf("%q became %q", in, b)
		}
		r.AskForUsage()
		r.SetModel("other")
		rd, _ = r.Open()
		b, _ := io.ReadAll(rd)
		again, err := body.Parse(b)
		if err != nil || again.Model != "other" || again.Stream && !again.IncludeUsage {
			t.Fatalf("%q became %q: %v", in, b, err)
		}
	})
}
