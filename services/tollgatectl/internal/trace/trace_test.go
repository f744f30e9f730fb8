package trace

import (
	"strings"
	"testing"
	"time"
)

const good = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n2023-11-16 18:15:49.0000000,0,0"

func TestReadKeepsOrderOffsetsAndTokens(t *testing.T) {
	got, err := Read(strings.NewReader(good), 0)
	if err != nil {
		t.Fatal(err)
	}
	want := []Request{{0, 374, 44}, {4314579 * time.Microsecond, 396, 109}, {2319410 * time.Microsecond, 0, 0}}
	if len(got) != len(want) {
		t.Fatalf("%d requests, want %d", len(got), len(want))
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("request %d is %+v, want %+v", i, got[i], want[i])
		}
	}
	if got, err := Read(strings.NewReader(good), 2); err != nil || len(got) != 2 {
		t.Errorf("limit 2 gives %d requests, %v", len(got), err)
	}
}

func TestReadTakesAnyColumnOrderAndOtherColumns(t *testing.T) {
	got, err := Read(strings.NewReader("\ufeffGeneratedTokens,region,ContextTokens,timestamp\r\n44,eu,374,2023-11-16T18:15:46Z\r\n"), 0)
	if err != nil || len(got) != 1 || got[0] != (Request{0, 374, 44}) {
		t.Fatalf("got %+v, %v", got, err)
	}
}

func TestReadNamesLineAndColumn(t *testing.T) {
	head := "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1,1\n"
	for name, c := range map[string]struct{ csv, want string }{
		"empty":           {"", "line 1: the file is empty"},
		"missing column":  {"TIMESTAMP,ContextTokens\n", "line 1: column GeneratedTokens is missing"},
		"column twice":    {"TIMESTAMP,ContextTokens,ContextTokens,GeneratedTokens\n", "line 1: column ContextTokens is there twice"},
		"no request":      {"TIMESTAMP,ContextTokens,GeneratedTokens\n", "line 2: the trace has a header but no request"},
		"bad time":        {head + "yesterday,1,1\n", `line 3, column TIMESTAMP: "yesterday"`},
		"text":            {head + "2023-11-16 18:15:46,abc,1\n", `line 3, column ContextTokens: "abc"`},
		"fraction":        {head + "2023-11-16 18:15:46,1.5,1\n", `line 3, column ContextTokens: "1.5"`},
		"negative":        {head + "2023-11-16 18:15:46,1,-1\n", `line 3, column GeneratedTokens: "-1"`},
		"over 2^53":       {head + "2023-11-16 18:15:46,1,9007199254740992\n", "line 3, column GeneratedTokens"},
		"too few fields":  {head + "2023-11-16 18:15:46,1\n", "line 3: wrong number of fields"},
		"broken quotes":   {head + "\"2023,1,1\n", "line 3"},
		"blank in number": {head + "2023-11-16 18:15:46,,1\n", `line 3, column ContextTokens: ""`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Read(strings.NewReader(c.csv), 0)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want it to hold %q", err, c.want)
			}
		})
	}
}
