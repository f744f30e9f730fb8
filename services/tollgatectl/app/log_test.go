package app

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	embeddedkafka "github.com/tollgate-dev/tollgate/pkg/embedded/kafka"
	"github.com/tollgate-dev/tollgate/pkg/testkit/stores"
	"github.com/tollgate-dev/tollgate/pkg/usage"
)

// logOf gives a broker whose log holds the events, in one partition, as the group has consumed them up to committed.
func logOf(t *testing.T, events []usage.Record, committed int64) []string {
	t.Helper()
	s := stores.Kafka(t, embeddedkafka.Topic{Name: usage.Topic, Partitions: 1}, embeddedkafka.Topic{Name: usage.DeadLetterTopic, Partitions: 1})
	var messages []kafka.Message
	for _, r := range events {
		m, err := usage.Encode(r, "/test")
		if err != nil {
			t.Fatal(err)
		}
		messages = append(messages, kafka.Message{Key: m.Key, Value: m.Value})
	}
	transport := &kafka.Transport{}
	defer transport.CloseIdleConnections()
	w := &kafka.Writer{Addr: kafka.TCP(s.Brokers()...), Topic: usage.Topic, RequiredAcks: kafka.RequireAll, BatchTimeout: time.Millisecond, Transport: transport}
	defer w.Close()
	if err := w.WriteMessages(t.Context(), messages...); err != nil {
		t.Fatal(err)
	}
	group := kafka.NewReader(kafka.ReaderConfig{Brokers: s.Brokers(), Topic: usage.Topic, GroupID: "tollgate-consumer", StartOffset: kafka.FirstOffset, MaxWait: 100 * time.Millisecond})
	defer group.Close()
	for range committed {
		if _, err := group.ReadMessage(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return s.Brokers()
}

func TestReconcileTellsByItsExitCodeAndByName(t *testing.T) {
	b := ledgerBook(t)
	events := sampleEvents()
	env := append([]string{"TOLLGATE_CLICKHOUSE_URL=" + b.dsn, "TOLLGATE_KAFKA_BROKERS=" + strings.Join(logOf(t, events, int64(len(events))), ",")}, b.env...)
	code, stdout, stderr := run(t, env, "reconcile", "--wait", "20s")
	if code != 0 || !strings.Contains(stdout, "✓ log and ledger agree") || !strings.Contains(stdout, fmt.Sprintf("in all  log         %d", len(events))) {
		t.Fatalf("exit %d\n%s%s", code, stdout, stderr)
	}

	more := append(sampleEvents(), on("04-01 00:00", "acme", "ann", "grok-2", 1000, 1))
	env[1] = "TOLLGATE_KAFKA_BROKERS=" + strings.Join(logOf(t, more, int64(len(more))), ",")
	code, stdout, stderr = run(t, env, "reconcile", "--wait", "20s")
	if code != 1 || !strings.Contains(stdout, "✗ 2026-04-01T00:00Z: input_tokens: log 1000, ledger 0 (-1000)") || !strings.Contains(stdout, "missing   "+more[len(events)].EventID.String()) ||
		!strings.Contains(stderr, "differences") {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
	code, stdout, stderr = run(t, env, "reconcile", "-o", "json", "--wait", "20s")
	var report struct {
		Log, Ledger struct{ Events int }
		Hours       []any
		Partitions  []struct{ Latest, Committed, Lag int }
		Differences []struct{ Kind, Where, Name string }
		Samples     []struct{ What string }
	}
	if err := json.Unmarshal([]byte(stdout), &report); err != nil || code != 1 {
		t.Fatalf("exit %d: %v\n%s%s", code, err, stdout, stderr)
	}
	if report.Log.Events != len(events)+1 || report.Ledger.Events != len(events) || len(report.Hours) < 10 || report.Partitions[0].Committed != len(events)+1 || report.Samples[0].What != "missing" {
		t.Errorf("%+v", report)
	}

	env[1] = "TOLLGATE_KAFKA_BROKERS=" + strings.Join(logOf(t, events, 10), ",")
	if code, stdout, _ = run(t, env, "reconcile", "--wait", "1ms"); code != 1 || !strings.Contains(stdout, fmt.Sprintf("✗ partition 0: not consumed: end of the log %d, committed 10 (%d)", len(events), 10-len(events))) {
		t.Errorf("a consumer that is behind: exit %d\n%s", code, stdout)
	}
	if code, _, stderr = run(t, env[2:], "reconcile"); code != 2 || !strings.Contains(stderr, "TOLLGATE_KAFKA_BROKERS, TOLLGATE_CLICKHOUSE_URL: not set") {
		t.Errorf("no address: exit %d, %s", code, stderr)
	}
	if code, _, stderr = run(t, []string{env[1], "TOLLGATE_CLICKHOUSE_URL=clickhouse://u:secret@%zz"}, "reconcile"); code != 2 || strings.Contains(stderr, "secret") {
		t.Errorf("a bad URL: exit %d, %s", code, stderr)
	}
}

func TestTailShowsWhatPassesItsFilters(t *testing.T) {
	events := sampleEvents()
	env := []string{"TOLLGATE_KAFKA_BROKERS=" + strings.Join(logOf(t, events, 0), ",")}
	code, stdout, stderr := run(t, env, "tail", "--since", "1h", "--limit", "3", "--org", "acme", "--user", "ann", "-o", "json")
	var got []string
	for line := range strings.Lines(stdout) {
		var m struct {
			Offset int64
			Record usage.Record
		}
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatal(err)
		}
		if m.Record.EventID != events[m.Offset].EventID {
			t.Errorf("offset %d bears %s", m.Offset, m.Record.EventID)
		}
		got = append(got, string(m.Record.Outcome))
	}
	if code != 0 || strings.Join(got, " ") != "completed failed expired" {
		t.Errorf("exit %d: %v %s", code, got, stderr)
	}
	code, stdout, _ = run(t, env, "tail", "--since", "1h", "--limit", "1", "--outcome", "rejected")
	if code != 0 || !strings.Contains(stdout, "10:00:00  rejected    tpm user          grok-2        user zoe\n") {
		t.Errorf("exit %d: %s", code, stdout)
	}
}

func TestUsageAndTopSumUpByOneThing(t *testing.T) {
	b := ledgerBook(t)
	rows := func(args ...string) string {
		t.Helper()
		code, stdout, stderr := b.run(t, append(args, "-o", "json")...)
		if code != 0 {
			t.Fatalf("%v: exit %d: %s", args, code, stderr)
		}
		return strings.Join(jsonRows(t, stdout), "\n")
	}
	march := []string{"usage", "--from", "2026-03", "--to", "2026-03", "--org", "acme"}
	for by, want := range map[string]string{
		"day":   "\"2026-03-01\",2,0,1100,40,520,1620\n\"2026-03-02\",2,0,110,0,11,121\n\"2026-03-03\",0,0,-10,0,-2,-12\n\"2026-03-06\",0,1,0,0,0,0",
		"model": "\"grok-4\",1,1,1000,0,500,1500\n\"grok-2\",3,0,200,40,29,229",
		"user":  "\"bob\",1,1,1000,0,500,1500\n\"ann\",3,0,200,40,29,229",
		"tier":  "\"plus\",4,1,1200,40,529,1729",
		"org":   "\"acme\",4,1,1200,40,529,1729",
		"key":   "\"\",4,1,1200,40,529,1729",
		"hour":  "\"2026-03-01 00:00\",1,0,100,40,20,120\n\"2026-03-01 12:00\",1,0,1000,0,500,1500\n\"2026-03-02 08:00\",1,0,50,0,5,55\n\"2026-03-02 09:00\",1,0,60,0,6,66\n\"2026-03-03 09:00\",0,0,-10,0,-2,-12\n\"2026-03-06 11:00\",0,1,0,0,0,0",
	} {
		if got := rows(append(march, "--by", by)...); got != want {
			t.Errorf("by %s:\n%s\nwant\n%s", by, got, want)
		}
	}
	recent := on("01-01 00:00", "now", "ann", "grok-2", 5, 5, func(r *usage.Record) { r.Timestamp = usage.At(time.Now()) })
	b.store(t, []usage.Record{recent})
	defer b.exec(t, "ALTER TABLE usage_ledger DELETE WHERE org_id = 'now' SETTINGS mutations_sync = 1")
	for _, last := range []string{"1h", "24h"} {
		if got := rows("top", "orgs", "--last", last); got != `"now",1,0,5,0,5,10` {
			t.Errorf("top of the last %s: %s", last, got)
		}
	}
	for _, c := range [][]string{{"top", "cats"}, {"top", "--last", "1s"}, {"top", "--limit", "0"}, {"usage", "--by", "weather"}, {"usage", "--limit", "-1"}, {"tail", "--limit", "-1"}, {"top", "users", "more"}, {"nonsense"}} {
		if code, _, stderr := b.run(t, c...); code != 2 || !strings.HasPrefix(stderr, "tollgatectl: ") {
			t.Errorf("%v: exit %d, %s", c, code, stderr)
		}
	}
}

func TestTheEnvironmentFileIsNamedOrFound(t *testing.T) {
	b := ledgerBook(t)
	path := filepath.Join(t.TempDir(), "env")
	if err := os.WriteFile(path, []byte(strings.Join(b.env, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, stdout, stderr := run(t, nil, "query", "corrections", "--from", "2026-03", "--to", "2026-03", "--env-file", path); code != 0 || !strings.Contains(stdout, "-10") {
		t.Errorf("exit %d: %s%s", code, stdout, stderr)
	}
	if code, _, stderr := run(t, nil, "query", "corrections", "--env-file", path+"x"); code != 1 || !strings.Contains(stderr, path+"x") {
		t.Errorf("no such file: exit %d, %s", code, stderr)
	}
}

func TestHelpAndCompletionCoverEveryCommand(t *testing.T) {
	code, help, _ := run(t, nil, "--help")
	for _, name := range []string{"query", "export", "usage", "top", "tail", "reconcile", "replay", "version", "completion"} {
		if code != 0 || !strings.Contains(help, "\n  "+name+" ") {
			t.Errorf("help lacks %s:\n%s", name, help)
		}
		if code, text, _ := run(t, nil, name, "--help"); code != 0 || !strings.Contains(text, "Usage:") {
			t.Errorf("%s --help: exit %d, %s", name, code, text)
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if code, script, _ := run(t, nil, "completion", shell); code != 0 || !strings.Contains(script, "tollgatectl") {
			t.Errorf("completion %s: exit %d", shell, code)
		}
	}
	if _, names, _ := run(t, nil, "__complete", "query", "to"); !strings.HasPrefix(names, "top-users\t") {
		t.Errorf("completion of query to: %s", names)
	}
	if _, values, _ := run(t, nil, "__complete", "usage", "-o", ""); !strings.HasPrefix(values, "table\njson\n") {
		t.Errorf("completion of -o: %s", values)
	}
}
