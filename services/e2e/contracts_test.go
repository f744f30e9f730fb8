package e2e

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/tollgate-dev/tollgate/pkg/price"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/usage"
	"github.com/tollgate-dev/tollgate/schemas"
)

func usageSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	text, err := schemas.FS.ReadFile("events/usage-record.v1.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("usage.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("usage.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestEveryRecordThatIsWrittenFitsItsSchema(t *testing.T) {
	s := usageSchema(t)
	id := uuid.MustParse("01890a5d-ac96-774b-bcce-b302099a8057")
	base := usage.Record{SchemaVersion: usage.SchemaVersion, RequestID: id, Tier: "plus", RequestedModel: "grok-2", Model: "grok-2",
		Timestamp: usage.At(time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)), Region: "eu", Instance: "i1"}
	user, key := subject.Subject{Kind: subject.User, ID: "u1"}, subject.Subject{Kind: subject.APIKey, ID: "k1"}
	for name, change := range map[string]func(*usage.Record){
		"completed": func(r *usage.Record) {
			r.EventID, r.UserID, r.InputTokens, r.OutputTokens, r.Outcome, r.Reservation = usage.EventID(user, id, usage.KindUsage), "u1", 10, usage.MaxTokens-10, usage.Completed, usage.Held
		},
		"of a key": func(r *usage.Record) {
			r.EventID, r.APIKeyID, r.OrgID, r.Outcome, r.Reservation = usage.EventID(key, id, usage.KindUsage), "k1", "o1", usage.Cancelled, usage.Missing
		},
		"rejected": func(r *usage.Record) {
			r.EventID, r.UserID, r.WasRateLimited, r.Reason, r.Scope, r.Outcome = usage.EventID(user, id, usage.KindRejection), "u1", true, "rpm", "user", usage.Rejected
		},
	} {
		r := base
		change(&r)
		m, err := usage.Encode(r, "/tollgate/enforcement")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var v any
		if err := json.Unmarshal(m.Value, &v); err != nil {
			t.Fatal(err)
		}
		if err := s.Validate(v); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The golden examples stand for what lies in the log: the consumer must read each of them, and refuse those that the contract refuses.
func TestEveryGoldenUsageRecordIsRead(t *testing.T) {
	const dir = "events/examples/usage-record.v1"
	read := 0
	err := fs.WalkDir(schemas.FS, dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(p, ".json") {
			return err
		}
		text, err := schemas.FS.ReadFile(p)
		if err != nil {
			return err
		}
		read++
		_, err = usage.Decode(text)
		if valid := path.Base(path.Dir(p)) != "invalid"; valid != (err == nil) {
			t.Errorf("%s: valid by the contract: %v, decoded with %v", p, valid, err)
		}
		return nil
	})
	if err != nil || read < 10 {
		t.Fatalf("read %d examples: %v", read, err)
	}
}

// What lies in quota.changes.v1 of the price book, too.
func TestEveryGoldenPriceEventIsRead(t *testing.T) {
	const dir = "events/examples/price-changed.v1"
	for pattern, good := range map[string]bool{dir + "/*.json": true, dir + "/invalid/*.json": false} {
		names, err := fs.Glob(schemas.FS, pattern)
		if err != nil || len(names) < 3 {
			t.Fatalf("%s: %d examples, %v", pattern, len(names), err)
		}
		for _, name := range names {
			text, err := schemas.FS.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			c, p, err := price.Decode(text)
			if (err == nil) != good {
				t.Errorf("%s: valid by the contract: %v, decoded with %v", name, good, err)
			}
			if good && err == nil && price.AmountsOf(p) != *c.After {
				t.Errorf("%s: reads as %+v, says %+v", name, price.AmountsOf(p), *c.After)
			}
		}
	}
}
