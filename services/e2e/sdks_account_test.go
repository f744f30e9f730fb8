//go:build sdks

package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"testing"
	"time"

	clickhousego "github.com/ClickHouse/clickhouse-go/v2"
)

// seen is what an SDK saw of one request: what its HTTP client got, and then what its caller was told. A line without an id tells of requests that were
// left before they were answered.
type seen struct {
	ID      string `json:"id"`
	Caller  string `json:"caller"`
	Path    string `json:"path"`
	Status  int    `json:"status"`
	Outcome string `json:"outcome,omitempty"` // of a request that was served
	Input   *int64 `json:"input,omitempty"`   // tokens, where they were told
	Output  *int64 `json:"output,omitempty"`
	Least   *int64 `json:"least,omitempty"` // output tokens that came, where no more is known
	Left    int    `json:"left,omitempty"`  // how many were left
}

func (s *seen) String() string {
	b, err := json.Marshal(s)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// readAccount reads what the tests of an SDK have noted: the requests by id, where later lines complete the first, and how many requests of each caller
// were left.
func readAccount(t *testing.T, text []byte) (all map[string]*seen, left map[string]int) {
	t.Helper()
	all, left = map[string]*seen{}, map[string]int{}
	for d := json.NewDecoder(bytes.NewReader(text)); ; {
		var line json.RawMessage
		if err := d.Decode(&line); err == io.EOF {
			return all, left
		} else if err != nil {
			t.Fatal(err)
		}
		var s seen
		if err := json.Unmarshal(line, &s); err != nil {
			t.Fatal(err)
		}
		if s.ID == "" {
			left[s.Caller] += s.Left
			continue
		}
		if all[s.ID] == nil {
			all[s.ID] = &seen{}
		}
		if err := json.Unmarshal(line, all[s.ID]); err != nil {
			t.Fatal(err)
		}
	}
}

// billed tells whether a request leaves a record: it does unless it was none of anybody's or asks for nothing that is sold.
func (s *seen) billed() bool {
	return s.Path != "/v1/models" && s.Status != http.StatusUnauthorized && s.Status != http.StatusNotFound
}

// sdkRecord is a record of the ledger.
type sdkRecord struct {
	id, user, key, outcome, reservation string
	input, output                       int64
	limited, estimated                  bool
}

// agrees holds what an SDK has seen against the ledger: each request has exactly one record, and nothing else has one.
func (p *wholePath) agrees(t *testing.T, callers map[string]caller, account map[string]*seen, left map[string]int) {
	t.Helper()
	users, named, used, want := []string{}, map[string]string{}, map[string]bool{}, 0
	for name, c := range callers {
		users, named[c.User] = append(users, c.User), name
		want += left[name]
	}
	t.Logf("%d requests were answered, %d left before", len(account), want)
	for id, s := range account {
		if s.Status == 0 {
			t.Errorf("%s was told and never answered: %s", id, s)
		}
		if s.billed() {
			want, used[s.Caller] = want+1, true
		}
	}
	if len(used) != len(callers) {
		t.Errorf("only %v were used", used)
	}
	records := p.recordsOf(t, users, want)
	answers := p.upstream.Answers()
	for id, s := range account {
		switch of := records[id]; {
		case !s.billed() && len(of) > 0:
			t.Errorf("a request that costs nothing has a record: %s", s)
		case s.billed() && len(of) != 1:
			t.Errorf("%s has %d records: %+v", s, len(of), of)
		case s.billed():
			if c := callers[s.Caller]; of[0].user != c.User || of[0].key != c.key {
				t.Errorf("%s is billed to somebody else: %+v", s, of[0])
			}
			s.compare(t, of[0])
			if a := answers[id]; s.Outcome == "completed" && a.Told && (of[0].input != int64(a.Prompt) || of[0].output != int64(a.Produced)) {
				t.Errorf("the server counted %d and %d tokens, recorded is %+v", a.Prompt, a.Produced, of[0])
			}
		}
		delete(records, id)
	}
	for id, of := range records {
		name := named[of[0].user]
		if len(of) != 1 || of[0].outcome != "cancelled" || left[name] == 0 {
			t.Errorf("nobody knows of %s, recorded is %+v of %s", id, of, name)
			continue
		}
		left[name]--
	}
	for name, n := range left {
		if n != 0 {
			t.Errorf("%d requests that %s left have no record", n, name)
		}
	}
	t.Logf("the ledger has one record of each of the %d that are billed", want)
}

// compare holds one record against what was seen.
func (s *seen) compare(t *testing.T, r sdkRecord) {
	t.Helper()
	want := sdkRecord{id: r.id, user: r.user, key: r.key, outcome: s.Outcome, reservation: "held", input: r.input, output: r.output, estimated: r.estimated}
	switch {
	case s.Status == http.StatusOK && s.Outcome == "completed" && s.Input != nil:
		want.input, want.output, want.estimated = *s.Input, *s.Output, false
	case s.Status == http.StatusOK && s.Outcome == "ended" && s.Input != nil: // by the quota: counted, and told as counted
		want.outcome, want.input, want.output, want.estimated = "completed", *s.Input, *s.Output, true
	case s.Status == http.StatusOK && s.Outcome != "" && s.Least != nil:
		want.estimated, want.output = true, max(r.output, *s.Least)
	case s.Status == http.StatusOK && s.Outcome == "completed": // a stream without usage: the server's count tells
		want.estimated = false
	case s.Status >= http.StatusInternalServerError:
		want.outcome, want.input, want.output, want.estimated = "failed", 0, 0, false
	case s.Status == http.StatusBadRequest, s.Status == http.StatusForbidden, s.Status == http.StatusTooManyRequests:
		want.outcome, want.reservation, want.limited, want.input, want.output = "rejected", r.reservation, true, 0, 0
	default:
		t.Errorf("it is not known how this is to be billed: %s", s)
	}
	if r != want {
		t.Errorf("seen was    %s\nrecorded is %+v\nnot         %+v", s, r, want)
	}
}

// recordsOf waits for so many records of the users.
func (p *wholePath) recordsOf(t *testing.T, users []string, want int) map[string][]sdkRecord {
	t.Helper()
	conn := p.ledger(t)
	deadline := time.Now().Add(30 * time.Second)
	for {
		rows, err := conn.Query(t.Context(), `SELECT toString(request_id), user_id, api_key_id, toString(outcome), toString(reservation), toInt64(input_tokens), toInt64(output_tokens),
			was_rate_limited, estimated FROM usage_events WHERE user_id IN (@users)`, clickhousego.Named("users", users))
		if err != nil {
			t.Fatal(err)
		}
		all, n := map[string][]sdkRecord{}, 0
		for ; rows.Next(); n++ {
			var r sdkRecord
			if err := rows.Scan(&r.id, &r.user, &r.key, &r.outcome, &r.reservation, &r.input, &r.output, &r.limited, &r.estimated); err != nil {
				t.Fatal(err)
			}
			all[r.id] = append(all[r.id], r)
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
		if n >= want || time.Now().After(deadline) {
			return all
		}
		time.Sleep(50 * time.Millisecond)
	}
}
