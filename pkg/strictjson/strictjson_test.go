package strictjson

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tollgate-dev/tollgate/pkg/problem"
)

type body struct {
	UserID string   `json:"user_id"`
	Tokens *int64   `json:"tokens"`
	Models []string `json:"models"`
	DryRun bool     `json:"dry_run"`
}

func TestBadInputNamesItsField(t *testing.T) {
	for in, field := range map[string]string{
		`{"tokens": "50"}`:                "tokens",
		`{"tokens": 1.5}`:                 "tokens",
		`{"tokens": 1e3}`:                 "tokens",
		`{"tokens": null}`:                "tokens",
		`{"tokens": true}`:                "tokens",
		`{"tokens": [10]}`:                "tokens",
		`{"tokens": 9223372036854775808}`: "tokens",
		`{"tokens": 1, "tokens": 2}`:      "tokens",
		`{"Tokens": 1}`:                   "Tokens",
		`{"unknown": 1}`:                  "unknown",
		`{"user_id": 7}`:                  "user_id",
		`{"models": ["a", 7]}`:            "models",
		`{"models": "a"}`:                 "models",
		`{"dry_run": "yes"}`:              "dry_run",
	} {
		var p *problem.Problem
		if err := Decode([]byte(in), &body{}); !errors.As(err, &p) || len(p.Errors) != 1 || p.Errors[0].Field != field {
			t.Errorf("%s: got %v, want one error for %q", in, err, field)
		}
	}
}

func TestEveryWrongFieldIsNamedAtOnce(t *testing.T) {
	var p *problem.Problem
	if err := Decode([]byte(`{"tokens": "a", "dry_run": 1, "x": 2}`), &body{}); !errors.As(err, &p) || len(p.Errors) != 3 {
		t.Fatalf("got %v, want three field errors", err)
	}
}

func TestMalformedBodiesAreRefused(t *testing.T) {
	for _, in := range []string{"", " ", "null", "[]", "7", `{`, `{"tokens":}`, `{"tokens":1`, `{} {}`, `{"a":1} x`, "\xff"} {
		var p *problem.Problem
		if err := Decode([]byte(in), &body{}); !errors.As(err, &p) || p.Code != problem.CodeMalformedJSON {
			t.Errorf("%q: got %v, want %s", in, err, problem.CodeMalformedJSON)
		}
	}
}

func TestBodyOverTheLimitIs413AndAnotherTypeIs415(t *testing.T) {
	big := `{"user_id":"` + strings.Repeat("a", MaxBody) + `"}`
	r, _ := http.NewRequest(http.MethodPost, "/", strings.NewReader(big))
	var p *problem.Problem
	if err := Read(r, &body{}); !errors.As(err, &p) || p.Status != http.StatusRequestEntityTooLarge {
		t.Errorf("got %v, want 413", err)
	}
	r, _ = http.NewRequest(http.MethodPost, "/", strings.NewReader(`{}`))
	r.Header.Set("Content-Type", "text/plain")
	if err := Read(r, &body{}); !errors.As(err, &p) || p.Status != http.StatusUnsupportedMediaType {
		t.Errorf("got %v, want 415", err)
	}
}

func TestAnswerToAHugeFaultIsShort(t *testing.T) {
	many := make([]string, 5000)
	for i := range many {
		many[i] = `"` + strings.Repeat("é", 100) + `":1`
	}
	for name, in := range map[string]string{"number": `{"tokens":` + strings.Repeat("1", 200_000) + `}`, "fields": "{" + strings.Join(many, ",") + "}",
		"syntax": `{"` + strings.Repeat("a", 5000) + `": 0x1}`} {
		w := httptest.NewRecorder()
		problem.Write(w, problem.From(Decode([]byte(in), &body{})))
		if w.Code != http.StatusBadRequest || w.Body.Len() > 10_000 {
			t.Errorf("%s: %d with %d bytes", name, w.Code, w.Body.Len())
		}
	}
}

func TestSyntaxErrorNamesTheFieldItIsIn(t *testing.T) {
	var p *problem.Problem
	if err := Decode([]byte(`{"user_id":"u","tokens":0x10}`), &body{}); !errors.As(err, &p) || !strings.Contains(p.Detail, `"tokens"`) {
		t.Errorf("got %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	for _, s := range []string{`{}`, `{"tokens":1}`, `{"user_id":"u","models":["a"]}`, `[`, `{"a":{"b":[1,2,{}]}}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		var b body
		var p *problem.Problem
		if err := Decode(in, &b); err != nil && !errors.As(err, &p) {
			t.Fatalf("error is not a problem: %v", err)
		}
	})
}

// What stands in a list is no less strict than what stands outside it.
func TestObjectsInListsAreDecodedStrictly(t *testing.T) {
	type inner struct {
		N    int64 `json:"n"`
		Deep []struct {
			S string `json:"s"`
		} `json:"deep"`
	}
	var dst struct {
		List  []inner  `json:"list"`
		Maybe *[]inner `json:"maybe"`
	}
	if err := Decode([]byte(`{"list":[{"n":1},{"deep":[{"s":"x"}]}],"maybe":[]}`), &dst); err != nil || len(dst.List) != 2 || dst.List[1].Deep[0].S != "x" || dst.Maybe == nil {
		t.Errorf("%+v %v", dst, err)
	}
	for body, want := range map[string]string{
		`{"list":[{"n":1},{"N":1}]}`: "list[1].N", `{"list":[{"n":1,"n":2}]}`: "list[0].n", `{"list":[null]}`: "list[0]", `{"list":[{"n":null}]}`: "list[0].n",
		`{"list":[{"n":1.5}]}`: "list[0].n", `{"list":{}}`: "list", `{"maybe":[{"deep":[{"s":1}]}]}`: "maybe[0].deep[0].s", `{"maybe":[1]}`: "maybe[0]",
		`{"list":[{"x":1},{"y":1}]}`: "list[0].x list[1].y",
	} {
		var p *problem.Problem
		var got []string
		if errors.As(Decode([]byte(body), &dst), &p) {
			for _, e := range p.Errors {
				got = append(got, e.Field)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: names %q, want %s", body, got, want)
		}
	}
}
