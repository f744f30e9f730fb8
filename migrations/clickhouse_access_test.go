package migrations

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Finance may read every view that there is, nothing below it, and the same on real servers as on the embedded one. A view that is
// replaced without its SQL SECURITY, or forgotten in a list, is found here.
func TestFinanceIsGrantedExactlyTheViews(t *testing.T) {
	db := emptyClickHouse(t)
	if err := ClickHouse(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	views := lines(t, db, `SELECT name AS line FROM system.tables WHERE database = currentDatabase() AND engine = 'View' ORDER BY name`)
	if len(views) < 5 {
		t.Fatalf("views: %v", views)
	}
	for _, invoker := range lines(t, db, `SELECT name AS line FROM system.tables WHERE database = currentDatabase() AND engine = 'View'
		AND NOT (create_table_query LIKE '% SQL SECURITY DEFINER %' AND create_table_query LIKE '% DEFINER = tollgate %')`) {
		t.Errorf("%s reads with the rights of its reader, who has none on what lies below", invoker)
	}
	for path, form := range map[string]string{
		"clickhouse/access/finance.sql":             `(?m)^GRANT SELECT ON tollgate\.(\w+) TO finance;$`,
		"../pkg/embedded/clickhouse/users.xml.tmpl": `<query>GRANT SELECT ON \{\{\.Database\}\}\.(\w+)</query>`,
	} {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var granted []string
		for _, m := range regexp.MustCompile(form).FindAllStringSubmatch(string(b), -1) {
			granted = append(granted, m[1])
		}
		slices.Sort(granted)
		if !slices.Equal(granted, views) {
			t.Errorf("%s grants %v\nwant %v", path, granted, views)
		}
		if n := strings.Count(string(b), "GRANT "); n != len(granted) {
			t.Errorf("%s has %d grants, of which %d are on views", path, n, len(granted))
		}
	}
}

// Finance's limits are the same on real servers as on the embedded one, and none can be switched off.
func TestFinanceHasTheSameLimitsEverywhere(t *testing.T) {
	var text [2]string
	for i, path := range []string{"clickhouse/access/finance.sql", "../pkg/embedded/clickhouse/users.xml.tmpl"} {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		text[i] = string(b)
	}
	limits := regexp.MustCompile(`\b(\w+) = (\d+) (READONLY|MIN 1 MAX (\d+))`).FindAllStringSubmatch(text[0], -1)
	have := map[string]bool{}
	for _, m := range limits {
		name, value := m[1], m[2]
		have[name] = true
		constraint := "<" + name + "><const/></" + name + ">"
		if m[3] != "READONLY" {
			constraint = "<" + name + "><min>1</min><max>" + m[4] + "</max></" + name + ">"
		}
		for _, want := range []string{"<" + name + ">" + value + "</" + name + ">", constraint} {
			if !strings.Contains(text[1], want) {
				t.Errorf("the embedded server's users lack %s", want)
			}
		}
	}
	for _, name := range []string{"readonly", "max_execution_time", "max_memory_usage", "max_memory_usage_for_user", "max_threads", "max_concurrent_queries_for_user"} {
		if !have[name] {
			t.Errorf("access/finance.sql does not bound %s", name)
		}
	}
}

// A query's header is its documentation: each part is there, and the README lists it.
func TestFinanceQueriesAreDocumented(t *testing.T) {
	queries, err := ClickHouseQueries()
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("clickhouse/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range queries {
		if !strings.Contains(string(readme), "| `"+q.Name+"` | "+q.Question+" |") {
			t.Errorf("clickhouse/README.md lacks the line | `%s` | %s |", q.Name, q.Question)
		}
	}
	for text, want := range map[string]string{
		"-- What?\n-- Output: rows\nSELECT {a:Date}":                              "input a is not in the header",
		"-- What?\n-- Input:  a: day\n-- Output: rows\nSELECT 1":                  "input a is not used",
		"-- What\n-- Output: rows\nSELECT 1":                                      "needs a question",
		"-- What?\nSELECT 1":                                                      "and an output",
		"-- What?\n-- Input:  a: day\n-- whatever\n-- Output: b\nSELECT {a:Date}": "is no input",
	} {
		if _, err := parseQuery(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	q, err := parseQuery("-- What?\n-- Input:  a: day (default: today)\n--         b: org\n-- Output: rows,\n--   many\nSELECT {a:Date}, {b:String}\n")
	if err != nil || q.Params[0] != (QueryParam{"a", "Date", "day", "today", true}) || q.Params[1].Optional || q.Output != "rows, many" || q.SQL != "SELECT {a:Date}, {b:String}\n" {
		t.Errorf("%+v, %v", q, err)
	}
}
