package app

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/tollgate-dev/tollgate/migrations"
	"github.com/tollgate-dev/tollgate/pkg/usage"
	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/clickhousehttp"
	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/show"
)

func queryCommand(s *session) (*cobra.Command, error) {
	queries, err := migrations.ClickHouseQueries()
	if err != nil {
		return nil, err
	}
	cmd := &cobra.Command{
		Use:   "query [NAME]",
		Short: "Ask the ledger one of finance's questions; without a name, list them",
		Long: `Query runs one of the documented queries (migrations/clickhouse/queries) as finance's read-only user. Days are given as 2026-12-31, a month as
2026-12. Decimals are exact; in JSON they are strings.`,
		Example: "  tollgatectl query usage-by-org --from 2026-12-01 --to 2026-12-31\n  tollgatectl query request --request-id 01890a5d-ac96-774b-bcce-b302099a8057 -o json",
		GroupID: groupFinance,
		Args:    cobra.NoArgs,
		RunE:    func(*cobra.Command, []string) error { return listQueries(s, queries) },
	}
	for _, q := range queries {
		cmd.AddCommand(oneQuery(s, q))
	}
	return cmd, nil
}

// dashed writes a name as the command line does.
func dashed(name string) string { return strings.ReplaceAll(name, "_", "-") }

func listQueries(s *session, queries []migrations.Query) error {
	type line struct {
		Name     string   `json:"name"`
		Question string   `json:"question"`
		Params   []string `json:"params"`
	}
	lines, rows := []line{}, [][]string{}
	for _, q := range queries {
		params := []string{}
		for _, p := range q.Params {
			params = append(params, "--"+dashed(p.Name))
		}
		lines = append(lines, line{dashed(q.Name), q.Question, params})
		rows = append(rows, []string{dashed(q.Name), strings.Join(params, " "), q.Question}) // what can be folded stands last
	}
	if s.output == outputJSON {
		return show.JSON(s.Stdout, lines)
	}
	return show.Grid(s.Stdout, []string{"name", "parameters", "question"}, make([]bool, 3), rows)
}

func oneQuery(s *session, q migrations.Query) *cobra.Command {
	values := make([]*string, len(q.Params))
	cmd := &cobra.Command{
		Use:     dashed(q.Name),
		Aliases: []string{q.Name},
		Short:   q.Question,
		Long:    q.Question + "\n\nGives " + q.Output + "\n\nThe query, as it runs:\n\n" + q.SQL,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			params := map[string]string{}
			for i, p := range q.Params {
				v, err := queryValue(p, *values[i], cmd.Flags().Changed(dashed(p.Name)), time.Now())
				if err != nil {
					return err
				}
				params[p.Name] = v
			}
			book, err := s.finance()
			if err != nil {
				return err
			}
			t, err := book.Table(cmd.Context(), clickhousehttp.Query{SQL: q.SQL, Params: params})
			if err != nil {
				return fmt.Errorf("query %s: %w", q.Name, err)
			}
			if s.output == outputTable {
				invoiceForPeople(t)
			}
			return s.answer(t)
		},
	}
	for i, p := range q.Params {
		text := p.Text
		if p.Optional && p.Default != "" {
			text += " (default: " + p.Default + ")"
		} else if !p.Optional {
			text += " (required)"
		}
		values[i] = cmd.Flags().String(dashed(p.Name), "", text)
	}
	return cmd
}

// queryValue checks one parameter, so that a wrong one is named here and not by ClickHouse.
func queryValue(p migrations.QueryParam, v string, given bool, now time.Time) (string, error) {
	flag := "--" + dashed(p.Name)
	switch {
	case !given && !p.Optional:
		return "", usagef("%s is required: %s", flag, p.Text)
	case !given:
		v = p.Default
	}
	switch p.Type {
	case "Date":
		day, err := parseDay(v, now, p.Name == "to")
		if err != nil {
			return "", usagef("%s: %w", flag, err)
		}
		return day.Format(time.DateOnly), nil
	case "UInt32":
		if n, err := strconv.ParseUint(v, 10, 32); err != nil || n == 0 {
			return "", usagef("%s: %q is not a whole number from 1", flag, v)
		}
	case "UUID":
		id, err := uuid.Parse(v)
		if err != nil {
			return "", usagef("%s: %q is not a UUID", flag, v)
		}
		return id.String(), nil
	}
	return v, nil
}

// parseDay reads a day, a month, today or this month, in UTC. A month is its first day, or its last one.
func parseDay(v string, now time.Time, last bool) (time.Time, error) {
	now = now.UTC()
	switch v {
	case "today":
		return now.Truncate(24 * time.Hour), nil
	case "this month":
		return time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC), nil
	}
	for _, layout := range []string{time.DateOnly, "2006-01"} {
		if t, err := time.Parse(layout, v); err == nil {
			if t.Year() < usage.MinYear || t.Year() > usage.MaxYear {
				return time.Time{}, fmt.Errorf("%q must lie between the years %d and %d", v, usage.MinYear, usage.MaxYear)
			}
			if last && layout != time.DateOnly {
				t = t.AddDate(0, 1, -1)
			}
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is not a day like 2026-12-31 or a month like 2026-12", v)
}
