package app

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/tollgate-dev/tollgate/migrations"
	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/clickhousehttp"
)

// The month and its days are the org's own, as those of its invoices: its tokens are the invoice's.
func TestMonthToDateIsOfTheOrgsOwnMonth(t *testing.T) {
	b := ledgerBook(t)
	for day, want := range map[string]string{
		"2026-03-29": "\"2026-03-28\",1,1,1,1\n\"2026-03-29\",4,30,5,31",
		"2026-10-31": "\"2026-10-25\",2,192,2,192\n\"2026-10-31\",1,256,3,448",
		"2026-11-30": "\"2026-11-01\",1,512,1,512",
	} {
		code, stdout, stderr := b.run(t, "query", "month-to-date", "--org", "zoned", "--today", day, "-o", "json")
		if got := strings.Join(jsonRows(t, stdout), "\n"); code != 0 || got != want {
			t.Errorf("up to %s:\n%s\nwant\n%s\n%s", day, got, want, stderr)
		}
	}
}

// Each of finance's queries gives what the events of sampleEvents mean. Every query must be here.
func TestFinanceQueriesAnswerRight(t *testing.T) {
	b := ledgerBook(t)
	march := []string{"--from", "2026-03", "--to", "2026-03"}
	for name, c := range map[string]struct {
		args []string
		want string // rows without column names, separated by a line
	}{
		"usage-by-org": {march, `"acme",4,1,1200,40,529,1729
"zoned",6,0,63,0,0,63
"globex",1,0,7,0,3,10
"",0,3,0,0,0,0`},
		"month-to-date": {[]string{"--org", "acme", "--today", "2026-03-03"}, `"2026-03-01",2,1620,2,1620
"2026-03-02",2,121,4,1741
"2026-03-03",0,-12,4,1729`},
		"top-users": {append([]string{"--limit", "3"}, march...), `"acme","bob","",1,1500,0.8324
"acme","ann","",3,229,0.1271
"zoned","ann","",6,63,0.035`},
		"refusals": {march, `"free","tpm","user",2,0.6667
"free","rpm","user",1,0.3333
"plus","tpd","org",1,1`},
		"day-in-zone": {[]string{"--org", "zoned", "--day", "2026-03-29", "--zone", "Europe/Berlin"}, `"2026-03-29 00:00 +0100",1,0,2,0,2
"2026-03-29 01:00 +0100",1,0,4,0,4
"2026-03-29 03:00 +0200",1,0,8,0,8
"2026-03-29 23:00 +0200",1,0,16,0,16`},
		"cached-share": {append([]string{"--org", "acme"}, march...), `"grok-4",1000,0,0
"grok-2",200,40,0.2`},
		"outcomes": {append([]string{"--org", "acme"}, march...), `"grok-2",3,1,1,0,0.3333,0.3333,1
"grok-4",1,0,0,0,0,0,0`},
		"corrections": {march, `"2026-03-03 09:00:00.000","acme","ann","","grok-2",-10,0,-2,"` + sampleEvents()[3].EventID.String() + `",*`},
		// In cents: acme's grok-2 60*2 + 40*0.5 + 20*10 and 50*2 + 5*10 make 490, then (60-10)*4 + (6-2)*20 make 280; globex 7*4 + 3*20, 88; zoned 63*4, 252.
		// grok-4 has no price.
		"cost-by-model": {march, `"grok-2","EUR",0,270,40,32,"11.1"
"grok-4","",1,1000,0,500,null`},
		"invoice": {[]string{"--org", "acme", "--month", "2026-03"}, `"grok-4","",1,1000,0,500,null,null,null,null,null
"grok-2","EUR",0,150,40,25,"20000","5000","100000","4.9","7.7"
"grok-2","EUR",0,50,0,4,"40000","10000","200000","2.8","7.7"`},
		"request": {[]string{"--request-id", sampleEvents()[3].RequestID.String()},
			`"2026-03-02 09:00:00.000","expired","","","acme","ann","","plus","grok-2","grok-2",60,0,6,66,7,"held",true,"` + sampleEvents()[3].EventID.String() + `",null,*`},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := b.run(t, append([]string{"query", name, "-o", "json"}, c.args...)...)
			if code != 0 {
				t.Fatalf("exit %d: %s", code, stderr)
			}
			got, want := jsonRows(t, stdout), strings.Split(c.want, "\n")
			if len(got) != len(want) {
				t.Fatalf("%d rows, want %d:\n%s", len(got), len(want), strings.Join(got, "\n"))
			}
			for i := range want {
				if begin, open := strings.CutSuffix(want[i], "*"); got[i] != want[i] && (!open || !strings.HasPrefix(got[i], begin)) {
					t.Errorf("row %d is\n%s, want\n%s", i, got[i], want[i])
				}
			}
			if code, stdout, stderr := b.run(t, append([]string{"query", name}, c.args...)...); code != 0 || len(strings.Split(strings.TrimSpace(stdout), "\n")) != len(want)+1 {
				t.Errorf("as a table: exit %d\n%s%s", code, stdout, stderr)
			}
		})
	}
	queries, err := migrations.ClickHouseQueries()
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := b.run(t, "query")
	for _, q := range queries {
		if !strings.Contains(list, dashed(q.Name)+" ") || !strings.Contains(list, q.Question) {
			t.Errorf("`query` does not list %s", q.Name)
		}
	}
}

// People see that something was used for money and not for free; programs get what is billed.
func TestAnAmountThatIsRoundedToNothingIsNotShownAsZero(t *testing.T) {
	b := ledgerBook(t)
	invoice := []string{"query", "invoice", "--org", "small", "--month", "2026-05"}
	code, stdout, stderr := b.run(t, invoice...)
	lines := strings.Split(stdout, "\n")
	if code != 0 || len(lines) != 4 || !strings.HasPrefix(lines[1], "nothing ") || !strings.HasSuffix(lines[1], "    0.00   0.00") || !strings.HasPrefix(lines[2], "tiny ") || !strings.HasSuffix(lines[2], "   <0.01   0.00") {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
	_, stdout, _ = b.run(t, append(invoice, "-o", "json")...)
	want := "\"nothing\",\"EUR\",0,100,0,0,\"0\",\"0\",\"0\",\"0\",\"0\"\n\"tiny\",\"EUR\",0,100,0,0,\"1\",\"1\",\"1\",\"0\",\"0\""
	if got := strings.Join(jsonRows(t, stdout), "\n"); got != want {
		t.Errorf("JSON\n%s\nwant\n%s", got, want)
	}
	_, stdout, _ = b.run(t, "query", "invoice", "--org", "acme", "--month", "2026-03")
	if !strings.Contains(stdout, " 4.90 ") || !strings.Contains(stdout, " 7.70\n") || strings.Contains(stdout, "unpriced") || !strings.Contains(stdout, "  -      -\n") {
		t.Errorf("without all cents, or no price is not told by the amount:\n%s", stdout)
	}
}

func TestTheSignOfWhatIsRoundedAwayIsShown(t *testing.T) {
	table := &clickhousehttp.Table{}
	for _, name := range []string{"input_tokens", "cached_input_tokens", "output_tokens", "input_per_million", "cached_input_per_million", "output_per_million", "amount"} {
		table.Columns = append(table.Columns, clickhousehttp.Column{Name: name})
	}
	for _, row := range []string{`[10,10,0,"5","0","7","0"]`, `[10,9,0,"5","0","7","0"]`, `[-10,0,1,"5","5","7","0"]`, `[5,0,0,null,null,null,null]`, `[1000000,0,0,"5","5","7","5"]`} {
		var values []json.RawMessage
		if err := json.Unmarshal([]byte(row), &values); err != nil {
			t.Fatal(err)
		}
		table.Rows = append(table.Rows, values)
	}
	invoiceForPeople(table)
	for i, want := range []string{`"0"`, `"<0.01"`, `">-0.01"`, "null", `"5"`} {
		if got := string(table.Rows[i][6]); got != want {
			t.Errorf("row %d: %s, want %s", i, got, want)
		}
	}
}

// jsonRows gives the values of a JSON array of objects, in their order, a row a line.
func jsonRows(t *testing.T, text string) (out []string) {
	t.Helper()
	var rows []json.RawMessage
	if err := json.Unmarshal([]byte(text), &rows); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	for _, r := range rows {
		d := json.NewDecoder(strings.NewReader(string(r)))
		d.UseNumber()
		var values []string
		for i := 0; ; i++ {
			tok, err := d.Token()
			if err != nil {
				break
			}
			if _, delim := tok.(json.Delim); delim {
				i--
				continue
			}
			if i%2 == 1 {
				v, err := json.Marshal(tok)
				if err != nil {
					t.Fatal(err)
				}
				values = append(values, string(v))
			}
		}
		out = append(out, strings.Join(values, ","))
	}
	return out
}

// A day on which clocks go back has the same hour twice, told apart by its offset.
func TestADayInTheOrgsZoneHasTheHourThatComesTwice(t *testing.T) {
	b := ledgerBook(t)
	code, stdout, stderr := b.run(t, "query", "day-in-zone", "--org", "zoned", "--day", "2026-10-25", "--zone", "Europe/Berlin", "-o", "json")
	want := "\"2026-10-25 02:00 +0200\",1,0,64,0,64\n\"2026-10-25 02:00 +0100\",1,0,128,0,128"
	if got := strings.Join(jsonRows(t, stdout), "\n"); code != 0 || got != want {
		t.Errorf("exit %d, %s\n%s\nwant\n%s", code, stderr, got, want)
	}
}

func TestAQuerysParametersAreCheckedByName(t *testing.T) {
	env := []string{"TOLLGATE_CLICKHOUSE_HTTP_URL=http://127.0.0.1:1", "TOLLGATE_FINANCE_USER=f", "TOLLGATE_FINANCE_PASSWORD=secret"}
	for name, c := range map[string]struct {
		code int
		args []string
		want string
	}{
		"no org":     {2, []string{"month-to-date"}, "--org is required"},
		"no day":     {2, []string{"usage-by-org", "--from", "yesterday"}, `--from: "yesterday" is not a day`},
		"far year":   {2, []string{"usage-by-org", "--from", "1815-01-01"}, "between the years"},
		"no number":  {2, []string{"top-users", "--limit", "many"}, `--limit: "many"`},
		"no uuid":    {2, []string{"request", "--request-id", "7"}, `--request-id: "7" is not a UUID`},
		"no query":   {2, []string{"nonsense"}, "unknown command"},
		"no flag":    {2, []string{"refusals", "--org", "x"}, "unknown flag"},
		"bad output": {2, []string{"refusals", "-o", "xml"}, "--output must be table or json"},
		"away":       {4, []string{"refusals"}, "ask ClickHouse at http://127.0.0.1:1"},
	} {
		code, stdout, stderr := run(t, env, append([]string{"query"}, c.args...)...)
		if code != c.code || !strings.Contains(stderr, c.want) || strings.Contains(stdout+stderr, "secret") {
			t.Errorf("%s: exit %d, want %d; %q should hold %q", name, code, c.code, stderr, c.want)
		}
	}
	if code, _, stderr := run(t, nil, "query", "refusals"); code != 2 || !strings.Contains(stderr, "TOLLGATE_CLICKHOUSE_HTTP_URL, TOLLGATE_FINANCE_USER") {
		t.Errorf("no address: exit %d, %s", code, stderr)
	}
}
