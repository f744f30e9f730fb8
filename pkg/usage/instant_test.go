package usage

import "testing"

func TestInstantsAreReadStrictlyAndOfYearsThatTheLedgerKnows(t *testing.T) {
	for text, want := range map[string]string{"2026-01-02T10:30:00Z": "2026-01-02T10:30:00.000Z", "2026-01-02T00:30:00.1239+01:00": "2026-01-01T23:30:00.123Z",
		"2000-01-01T00:00:00Z": "2000-01-01T00:00:00.000Z", "2100-12-31T23:59:59.999Z": "2100-12-31T23:59:59.999Z"} {
		if at, err := ParseInstant(text); err != nil || At(at).String() != want {
			t.Errorf("%s: %v, %v", text, at, err)
		}
	}
	for _, text := range []string{"", "now", "2026-01-02", "2026-01-02T10:30:00", "2026-01-02T1:30:00Z", "2026-01-02T10:30:00,5Z", "2026-01-02T10:30:60Z", "2026-02-30T00:00:00Z",
		"2026-01-02T10:30:00+24:00", " 2026-01-02T10:30:00Z", "2026-01-02T10:30:00Z\n", "1e400", "1999-12-31T23:59:59Z", "2000-01-01T00:30:00+01:00", "2101-01-01T00:00:00Z",
		"2100-12-31T23:59:59-01:00", "9999-12-31T23:59:59Z", "0000-01-01T00:00:00Z"} {
		if at, err := ParseInstant(text); err == nil {
			t.Errorf("%q was read as %v", text, at)
		}
	}
}
