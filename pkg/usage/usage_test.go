package usage

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/subject"
)

func sample() Record {
	s := subject.Subject{Kind: subject.User, ID: "u1"}
	id := uuid.MustParse("01890a5d-ac96-774b-bcce-b302099a8057")
	return Record{EventID: EventID(s, id, KindUsage), SchemaVersion: 1, UserID: "u1", OrgID: "o1", Tier: "plus", RequestID: id,
		RequestedModel: "grok-2", Model: "grok-2", InputTokens: 10, OutputTokens: 5, ReservedTokens: 20, LatencyMS: 7,
		Timestamp: At(time.Date(2026, 1, 1, 12, 0, 0, 123456789, time.UTC)), Outcome: Completed, Reservation: Held, Region: "eu", Instance: "i1"}
}

func TestRepeatOfARequestHasTheSameEventID(t *testing.T) {
	u1, u2 := subject.Subject{Kind: subject.User, ID: "u1"}, subject.Subject{Kind: subject.User, ID: "u2"}
	id := uuid.New()
	if EventID(u1, id, KindUsage) != EventID(u1, id, KindUsage) {
		t.Error("a repeat got another id")
	}
	for _, other := range []uuid.UUID{EventID(u2, id, KindUsage), EventID(u1, id, KindRejection), EventID(u1, uuid.New(), KindUsage)} {
		if other == EventID(u1, id, KindUsage) {
			t.Error("another event got the same id")
		}
	}
}

// A changed derivation would make every replayed event a new one.
func TestEventIDNeverChanges(t *testing.T) {
	const want = "d8024f3d-a16f-8ca9-9890-a5dae2bc0e68"
	if got := sample().EventID.String(); got != want {
		t.Errorf("event id is %s, was %s in every earlier release", got, want)
	}
}

// The ledger looks ids up by range: those of one time must lie side by side, in the order in which ClickHouse compares, second half first.
func TestEventIDsOfOneTimeLieSideBySide(t *testing.T) {
	before := uint64(0)
	for s := range 1000 {
		at := uint64(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()) + uint64(s)*1024
		least, most := ^uint64(0), uint64(0)
		for range 20 {
			request := uuid.New()
			binary.BigEndian.PutUint64(request[:8], at<<16|0x7000|uint64(request[7]))
			id := EventID(subject.Subject{Kind: subject.User, ID: "u1"}, request, KindUsage)
			if id.Version() != 8 || id.Variant() != uuid.RFC4122 {
				t.Fatalf("%s is no UUIDv8", id)
			}
			half := binary.BigEndian.Uint64(id[8:])
			least, most = min(least, half), max(most, half)
		}
		if least <= before {
			t.Fatalf("second %d: %x comes before an id of the second before, %x", s, least, before)
		}
		if most-least >= 1<<30 {
			t.Fatalf("second %d: ids from %x to %x", s, least, most)
		}
		before = most
	}
}

func TestRecordSurvivesTheWire(t *testing.T) {
	want := sample()
	m, err := Encode(want, "/test")
	if err != nil {
		t.Fatal(err)
	}
	got, err := Decode(m.Value)
	if err != nil {
		t.Fatal(err)
	}
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if string(m.Key) != "org:o1" {
		t.Errorf("key is %s", m.Key)
	}
}

func TestUnusableMessageHasItsReason(t *testing.T) {
	good, _ := Encode(sample(), "/test")
	replace := func(old, new string) []byte { return []byte(replaceOnce(string(good.Value), old, new)) }
	for name, c := range map[string]struct {
		value  []byte
		reason string
	}{
		"tombstone":       {nil, ReasonEmpty},
		"blank":           {[]byte(" \n"), ReasonEmpty},
		"not json":        {[]byte("hello"), ReasonNotJSON},
		"cut":             {good.Value[:40], ReasonNotJSON},
		"a list":          {[]byte("[1]"), ReasonInvalid},
		"null":            {[]byte("null"), ReasonNotJSON},
		"version 9":       {replace(`"schema_version":1`, `"schema_version":9`), ReasonSchemaVersion},
		"tokens as text":  {replace(`"input_tokens":10`, `"input_tokens":"abc"`), ReasonInvalid},
		"negative tokens": {replace(`"input_tokens":10`, `"input_tokens":-10`), ReasonInvalid},
		"fraction":        {replace(`"input_tokens":10`, `"input_tokens":1.5`), ReasonInvalid},
		"no org":          {replace(`"org_id":"o1",`, ``), ReasonInvalid},
		"forged org":      {replace(`"org_id":"o1"`, `"org_id":"o:1"`), ReasonInvalid},
		"bad outcome":     {replace(`"completed"`, `"done"`), ReasonInvalid},
		"bad time":        {replace(`2026-01-01T`, `2026-13-01T`), ReasonInvalid},
		"year 2150":       {replace(`2026-01-01T`, `2150-01-01T`), ReasonInvalid},
		"year 0001":       {replace(`2026-01-01T`, `0001-01-01T`), ReasonInvalid},
	} {
		_, err := Decode(c.value)
		var de *DecodeError
		if !errors.As(err, &de) || de.Reason != c.reason {
			t.Errorf("%s: got %v, want reason %s", name, err, c.reason)
		}
	}
}

// What another producer writes differs from ours to the byte: in space, order or fields that this version doesn't know. It is read all the same,
// and still no field may be missing, null or spelled otherwise.
func TestRecordOfAnotherProducerIsReadAndLacksNoField(t *testing.T) {
	m, err := Encode(sample(), "/test")
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(m.Value, &fields); err != nil {
		t.Fatal(err)
	}
	decode := func() (Record, error) {
		value, err := json.MarshalIndent(fields, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		return Decode(value)
	}
	fields["of_a_later_version"] = 1
	if got, err := decode(); err != nil || got != sample() {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, name := range requiredFields {
		was := fields[name]
		refused := func(how string) {
			var de *DecodeError
			if r, err := decode(); !errors.As(err, &de) || name != "schema_version" && !strings.HasPrefix(de.Err.Error(), name) {
				t.Errorf("%s %s: got %+v, %v", name, how, r, err)
			}
		}
		fields[name] = nil
		refused("is null")
		delete(fields, name)
		refused("is missing")
		fields[strings.ToUpper(name)] = was
		refused("in capitals")
		delete(fields, strings.ToUpper(name))
		fields[name] = was
	}
}

// BenchmarkDecode reads a record as Encode writes it and, for comparison, one of another producer.
func BenchmarkDecode(b *testing.B) {
	m, err := Encode(sample(), "/test")
	if err != nil {
		b.Fatal(err)
	}
	for name, value := range map[string][]byte{"own": m.Value, "other": append([]byte(" "), m.Value...)} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := Decode(value); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func replaceOnce(s, old, new string) string {
	for i := 0; i+len(old) <= len(s); i++ {
		if s[i:i+len(old)] == old {
			return s[:i] + new + s[i+len(old):]
		}
	}
	panic("not in the sample: " + old)
}

func TestTimestampIsUTCWithMilliseconds(t *testing.T) {
	berlin := time.FixedZone("", 3600)
	if got := At(time.Date(2026, 1, 1, 13, 0, 0, 0, berlin)).String(); got != "2026-01-01T12:00:00.000Z" {
		t.Error(got)
	}
}

func FuzzDecode(f *testing.F) {
	m, _ := Encode(sample(), "/test")
	f.Add(m.Value)
	f.Add([]byte(`{"schema_version":1}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		r, err := Decode(in)
		if err != nil {
			var de *DecodeError
			if !errors.As(err, &de) {
				t.Fatalf("not a DecodeError: %v", err)
			}
			return
		}
		again, err := Encode(r, "/test")
		if err != nil {
			t.Fatalf("a record that decodes must encode: %v", err)
		}
		if r2, err := Decode(again.Value); err != nil || r2 != r {
			t.Fatalf("round trip: %v\n%+v\n%+v", err, r, r2)
		}
	})
}
