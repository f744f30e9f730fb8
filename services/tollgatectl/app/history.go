package app

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tollgate-dev/tollgate/pkg/client"
	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/show"
)

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// told is one change as a history shows it. Before and After have a JSON object's form, or are null.
type told struct {
	version       int64
	at            time.Time
	actor, reason string
	before, after any
	always        string // a field that is shown even where it stayed
}

// history shows changes, one row a field that changed and one for the reason. What is long stands in the last column, so that it pushes nothing aside.
func (s *session) history(events []told) error {
	var rows [][]string
	for _, e := range events {
		first := []string{itoa(e.version), when(&e.at), e.actor}
		for _, d := range differences(e) {
			rows = append(rows, append(slices.Clone(first), d...))
			first = []string{"", "", ""}
		}
	}
	return show.List(s.Stdout, []string{"version", "at", "actor", "field", "change"}, []bool{true, false, false, false, false}, rows)
}

// differences gives each field that changed, with what it was and is; a whole that came or went is told by its fields.
func differences(e told) (out [][]string) {
	if e.reason != "" {
		out = append(out, []string{"reason", e.reason})
	}
	b, a := members(e.before), members(e.after)
	if len(a) == 0 {
		out = append(out, []string{"(all)", "deleted"})
	}
	for _, n := range fieldsOf(b, a) {
		switch {
		case !bytes.Equal(b[n], a[n]) && !empty(b[n], a[n]):
			out = append(out, []string{n, side(b, n) + " → " + side(a, n)})
		case n == e.always:
			out = append(out, []string{n, side(a, n)})
		}
	}
	if len(out) == 0 {
		out = append(out, []string{"(none)", ""})
	}
	return out
}

// empty tells that a field came or went that says nothing: "", false, [].
func empty(b, a json.RawMessage) bool {
	nothing := func(v json.RawMessage) bool {
		return v == nil || slices.Contains([]string{`""`, "false", "[]", "null"}, string(v))
	}
	return (b == nil || a == nil) && nothing(b) && nothing(a)
}

func side(m map[string]json.RawMessage, name string) string {
	if v, ok := m[name]; ok && string(v) != `""` {
		return shortField(name, v)
	}
	return "-"
}

// fieldsOf gives all members' names: whose it is first, limits in people's order, then others by name.
func fieldsOf(ms ...map[string]json.RawMessage) (names []string) {
	for _, m := range ms {
		for n := range m {
			if n != "version" && n != "updated_at" && !slices.Contains(names, n) {
				names = append(names, n)
			}
		}
	}
	order := append([]string{"owner", "name", "tier", "org_id", "suspended", "valid_from", "currency", "input", "cached_input", "output"}, ownLimits...)
	rank := func(n string) int {
		if i := slices.Index(order, n); i >= 0 {
			return i
		}
		return len(order)
	}
	slices.SortFunc(names, func(x, y string) int {
		return cmp.Or(rank(x)-rank(y), strings.Compare(x, y))
	})
	return names
}

// historyCommand shows the changes of one thing. read gives a page of them.
func (s *session) historyCommand(use, short, what string, read func(*api, context.Context, string, client.Page) ([]told, string, error)) *cobra.Command {
	var page pageFlags
	cmd := &cobra.Command{
		Use:   use,
		Short: short,
		Long:  short + ", the oldest first. A field without a value of its own is \"-\".",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := id(what, args[0]); err != nil {
				return err
			}
			return list(cmd.Context(), s, page, "events", func(k *api, ctx context.Context, p client.Page) ([]told, string, error) {
				return read(k, ctx, args[0], p)
			}, s.history)
		},
	}
	page.add(cmd)
	return cmd
}

// quotaEvents makes what is told of changes of quotas, keys and pools.
func quotaEvents(events []client.QuotaEvent, next string, err error) ([]told, string, error) {
	out := make([]told, len(events))
	for i, e := range events {
		out[i] = told{e.Version, e.At, e.Actor, e.Reason, e.Before, e.After, ""}
	}
	return out, next, err
}
