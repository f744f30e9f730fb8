package migrations

import (
	"embed"
	"fmt"
	"path"
	"regexp"
	"strings"
)

//go:embed clickhouse/queries/*.sql
var queryFiles embed.FS

// Query is one of finance's questions to the ledger. It reads views only, and names its parameters as ClickHouse does: {name:Type}.
type Query struct {
	Name     string // the file's, without .sql
	Question string // what it answers, in a line
	Params   []QueryParam
	Output   string // columns and units
	SQL      string // without the header
}

// QueryParam is a parameter of a Query.
type QueryParam struct {
	Name, Type string
	Text       string // what it means
	Default    string // as in the header: a value, '' for an empty one, today, this month
	Optional   bool   // there is a default
}

var (
	queryInput = regexp.MustCompile(`^-- (?:Input:)? +(\w+): (.*)$`)
	queryMore  = regexp.MustCompile(`\s*\(default: (.*)\)$`)
	queryUse   = regexp.MustCompile(`\{(\w+):(\w+)\}`)
)

// ClickHouseQueries reads finance's queries (clickhouse/queries), by name. An error names the file whose header breaks the form: a question, the
// inputs one a line, the output.
func ClickHouseQueries() ([]Query, error) {
	files, err := queryFiles.ReadDir("clickhouse/queries")
	if err != nil {
		return nil, fmt.Errorf("read the queries: %w", err)
	}
	var out []Query
	for _, f := range files {
		b, err := queryFiles.ReadFile(path.Join("clickhouse/queries", f.Name()))
		if err != nil {
			return nil, fmt.Errorf("read the queries: %w", err)
		}
		q, err := parseQuery(string(b))
		if err != nil {
			return nil, fmt.Errorf("query %s: %w", f.Name(), err)
		}
		q.Name = strings.TrimSuffix(f.Name(), ".sql")
		out = append(out, q)
	}
	return out, nil
}

func parseQuery(text string) (q Query, err error) {
	header, output := true, false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if header = header && strings.HasPrefix(line, "--"); !header {
			q.SQL += line + "\n"
			continue
		}
		words := strings.TrimSpace(strings.TrimPrefix(line, "--"))
		switch m := queryInput.FindStringSubmatch(line); {
		case q.Question == "":
			q.Question = words
		case strings.HasPrefix(words, "Output:"):
			output, q.Output = true, strings.TrimSpace(strings.TrimPrefix(words, "Output:"))
		case output:
			q.Output += " " + words
		case m != nil:
			p := QueryParam{Name: m[1], Text: m[2]}
			if d := queryMore.FindStringSubmatch(p.Text); d != nil {
				p.Text, p.Default, p.Optional = strings.TrimSuffix(p.Text, d[0]), strings.Trim(d[1], "'"), true
			}
			q.Params = append(q.Params, p)
		default:
			return q, fmt.Errorf("line %q of the header is no input", line)
		}
	}
	types := map[string]string{}
	for _, m := range queryUse.FindAllStringSubmatch(q.SQL, -1) {
		types[m[1]] = m[2]
	}
	for i := range q.Params {
		p := &q.Params[i]
		if p.Type = types[p.Name]; p.Type == "" {
			return q, fmt.Errorf("input %s is not used", p.Name)
		}
		delete(types, p.Name)
	}
	for name := range types {
		return q, fmt.Errorf("input %s is not in the header", name)
	}
	if !strings.HasSuffix(q.Question, "?") || q.Output == "" {
		return q, fmt.Errorf("the header needs a question and an output")
	}
	return q, nil
}
