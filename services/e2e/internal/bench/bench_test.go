package bench

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"
)

func TestMonitorLineGivesTheCommandBack(t *testing.T) {
	got, err := parseMonitor(`1339518083.107412 [0 127.0.0.1:60866] "evalsha" "abc" "2" "tg:{7}:b:user:u1" "" "{\"a\":\"\xc3\xa4\"}" "a] b"`)
	want := call{"evalsha", "abc", "2", "tg:{7}:b:user:u1", "", `{"a":"ä"}`, "a] b"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v", got, err)
	}
	for _, line := range []string{"OK", `1 [0 a] "open`, ""} {
		if c, err := parseMonitor(line); err == nil {
			t.Errorf("%q gives %q", line, c)
		}
	}
}

func TestBenchmarkTableIsReadWhateverTheCommandHolds(t *testing.T) {
	text := "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\"p95_latency_ms\",\"p99_latency_ms\",\"max_latency_ms\"\n" +
		"\"evalsha abc 1 k {\"m\",\"n\"}\",\"61728.39\",\"0.229\",\"0.072\",\"0.215\",\"0.319\",\"0.447\",\"1.175\"\n"
	r, err := parseBenchmark("x", text)
	if err != nil || r != (Result{"x", 61728.39, 215 * time.Microsecond, 447 * time.Microsecond}) {
		t.Errorf("got %+v, %v", r, err)
	}
	if _, err := parseBenchmark("x", "Could not connect"); err == nil {
		t.Error("no error for no table")
	}
}

func TestMeasureEndsWithTheFirstError(t *testing.T) {
	cause := errors.New("refused")
	if _, err := measure(t.Context(), "x", 2, time.Minute, func(context.Context, int, int) error { return cause }); !errors.Is(err, cause) {
		t.Errorf("error is %v", err)
	}
}

func TestBytesThatAreZeroArePutInByTheScript(t *testing.T) {
	got, err := call{"eval", "return 1", "2", "k1", "k2", "a", "b\x00\x0a", "c"}.tellable()
	want := call{"eval", "ARGV[2] = \"\\098\\000\\010\"\nreturn 1", "2", "k1", "k2", "a", "xxx", "c"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
}
