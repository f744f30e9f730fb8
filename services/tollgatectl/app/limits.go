package app

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tollgate-dev/tollgate/pkg/tier"
	"github.com/tollgate-dev/tollgate/services/tollgatectl/internal/replay"
)

// Words that a limit's flag takes beside a value.
const (
	wordDefault   = "default"   // no limit of one's own
	wordUnlimited = "unlimited" // 0
	wordNone      = "none"      // an empty list
	wordAll       = "all"       // of models, which is an empty list too
)

// limitFlags are the limits that a command states. own: it may also say "default".
type limitFlags struct {
	rpm, tpm, tpd, concurrent, maxContext, shards string
	models, limits, modelLimits                   string
	own                                           bool
}

// which of the flags a command has.
type limitSet struct{ models, maxContext, modelLimits, shards bool }

func (f *limitFlags) add(cmd *cobra.Command, has limitSet, otherwise string) {
	fs := cmd.Flags()
	number := "; a `number` or unlimited"
	if f.own {
		number = "; a `number`, unlimited or default (" + otherwise + ")"
	}
	fs.StringVar(&f.rpm, "rpm", "", "requests per minute"+number)
	fs.StringVar(&f.tpm, "tpm", "", "tokens per minute")
	fs.StringVar(&f.tpd, "tpd", "", "tokens per day")
	fs.StringVar(&f.concurrent, "concurrent", "", "requests at once")
	fs.StringVar(&f.limits, "limits", "", "further limits, as in `requests/1d=5000`,input_tokens/1m=800, or none")
	if has.models {
		fs.StringVar(&f.models, "models", "", "which `models`, separated by commas, or all")
	}
	if has.maxContext {
		fs.StringVar(&f.maxContext, "max-context", "", "most `tokens` of input and output together")
	}
	if has.modelLimits {
		fs.StringVar(&f.modelLimits, "model-limits", "", "limits of groups of models, as the API's `JSON` list or @FILE, or none")
	}
	if has.shards {
		fs.StringVar(&f.shards, "shards", "", "over how many Redis hash slots the payer is spread, 1 to 64")
	}
}

// ownLimits are the fields of an Overrides, in the order people read them in.
var ownLimits = []string{"rpm_limit", "tpm_limit", "tpd_limit", "concurrent_limit", "max_context", "allowed_models", "limits", "model_limits", "shards"}

// apply puts what was given over o, and tells which fields those were. Every flag that can't be used is named.
func (f *limitFlags) apply(cmd *cobra.Command, o *tier.Overrides) (given []string, err error) {
	var wrong []error
	for _, n := range []struct {
		field, text string
		to          **int64
	}{{"rpm_limit", f.rpm, &o.RPMLimit}, {"tpm_limit", f.tpm, &o.TPMLimit}, {"tpd_limit", f.tpd, &o.TPDLimit}, {"concurrent_limit", f.concurrent, &o.ConcurrentLimit},
		{"max_context", f.maxContext, &o.MaxContext}, {"shards", f.shards, &o.Shards}} {
		wrong = append(wrong, setOwn(cmd, f.own, n.field, n.text, n.to, parseLimit, &given))
	}
	wrong = append(wrong, setOwn(cmd, f.own, "allowed_models", f.models, &o.AllowedModels, parseModels, &given),
		setOwn(cmd, f.own, "limits", f.limits, &o.Limits, parseLimits, &given),
		setOwn(cmd, f.own, "model_limits", f.modelLimits, &o.ModelLimits, parseModelLimits, &given))
	if err := errors.Join(wrong...); err != nil {
		return nil, usageError{err}
	}
	return given, nil
}

// setOwn reads one flag, if it was given.
func setOwn[T any](cmd *cobra.Command, own bool, field, text string, to **T, parse func(string) (T, error), given *[]string) error {
	flag := flagOf(cmd, field)
	if flag == "" || !cmd.Flags().Changed(flag[2:]) {
		return nil
	}
	*given = append(*given, field)
	if own && text == wordDefault {
		*to = nil
		return nil
	}
	v, err := parse(text)
	if err != nil {
		return fmt.Errorf("%s: %w", flag, err)
	}
	*to = &v
	return nil
}

func parseLimit(text string) (int64, error) {
	if text == wordUnlimited {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is not a whole number", text)
	}
	return n, nil
}

func parseModels(text string) ([]string, error) {
	if text == wordAll {
		return []string{}, nil
	}
	return strings.Split(text, ","), nil
}

func parseLimits(text string) ([]tier.Limit, error) {
	all := []tier.Limit{}
	if text == wordNone {
		return all, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		what, capacity, ok := strings.Cut(part, "=")
		counts, window, ok2 := strings.Cut(what, "/")
		n, err := strconv.ParseInt(capacity, 10, 64)
		if !ok || !ok2 || err != nil {
			return nil, fmt.Errorf("%q is not a limit like requests/1d=5000", part)
		}
		all = append(all, tier.Limit{Counts: counts, Window: window, Capacity: n})
	}
	return all, nil
}

// maxJSON bounds a file of --model-limits, in bytes: the API's own bound.
const maxJSON = 1 << 20

func parseModelLimits(text string) ([]tier.ModelLimits, error) {
	all := []tier.ModelLimits{}
	if text == wordNone {
		return all, nil
	}
	if path, ok := strings.CutPrefix(text, "@"); ok {
		f, err := os.Open(path) //nolint:gosec // the path is the user's own
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }() // read only
		b, err := io.ReadAll(io.LimitReader(f, maxJSON+1))
		if err != nil {
			return nil, err
		}
		text = string(b)
	}
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(&all); err != nil {
		return nil, fmt.Errorf(`must be a list like [{"group":"big","models":["grok-4"],"rpm_limit":20}]: %w`, err)
	}
	if d.More() {
		return nil, errors.New("must be one JSON list")
	}
	for i := range all { // the API takes no null
		all[i].Models, all[i].Limits = noNil(all[i].Models), noNil(all[i].Limits)
	}
	return all, nil
}

func noNil[T any](list []T) []T { return append([]T{}, list...) }

// dropped names the limits of o that a command does not state, with their values: what a PUT would take away.
func dropped(o tier.Overrides, given []string) (out []string) {
	own := members(o)
	for _, field := range ownLimits {
		if v, ok := own[field]; ok && !slices.Contains(given, field) {
			out = append(out, field+" "+shortField(field, v))
		}
	}
	return out
}

// members gives the members of what has a JSON object's form.
func members(v any) map[string]json.RawMessage {
	m := map[string]json.RawMessage{}
	if b, err := json.Marshal(v); err == nil && string(b) != "null" {
		_ = json.Unmarshal(b, &m) // an object's own text
	}
	return m
}

// short is a JSON value for people: no quotes, no brackets; limits and groups as the flags take them.
func short(v json.RawMessage) string {
	if text, ok := decoded[string](v); ok {
		if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
			return when(&at)
		}
		return text
	}
	if texts, ok := decoded[[]string](v); ok {
		if len(texts) == 0 {
			return wordNone
		}
		return strings.Join(texts, ",")
	}
	if n, ok := decoded[int64](v); ok {
		return replay.Commas(n)
	}
	if yes, ok := decoded[bool](v); ok {
		return yesNo(yes)
	}
	var texts []string
	if groups, ok := decoded[[]tier.ModelLimits](v); ok && groups[0].Group != "" {
		for _, g := range groups {
			parts := []string{strings.Join(g.Models, "+")}
			for _, l := range lineLimits(g.RPMLimit, g.TPMLimit, g.TPDLimit, g.ConcurrentLimit, g.Limits) {
				if l.capacity != 0 {
					parts = append(parts, fmt.Sprintf("%s=%d", l.short, l.capacity))
				}
			}
			texts = append(texts, g.Group+"("+strings.Join(parts, " ")+")")
		}
		return strings.Join(texts, ",")
	}
	if limits, ok := decoded[[]tier.Limit](v); ok {
		for _, l := range limits {
			texts = append(texts, fmt.Sprintf("%s/%s=%d", l.Counts, l.Window, l.Capacity))
		}
		return strings.Join(texts, ",")
	}
	return string(v)
}

// shortField is short, with a limit of 0 named.
func shortField(field string, v json.RawMessage) string {
	if string(v) == "0" && (strings.HasSuffix(field, "_limit") || field == "max_context") {
		return wordUnlimited
	}
	return short(v)
}

// decoded reads a JSON value of a type; a null is of none.
func decoded[T any](v json.RawMessage) (out T, ok bool) {
	ok = string(v) != "null" && json.Unmarshal(v, &out) == nil
	return out, ok
}

// amount is a limit for people.
func amount(n int64) string {
	if n == 0 {
		return wordUnlimited
	}
	return replay.Commas(n)
}

// lineLimit is one line of a table of limits.
type lineLimit struct {
	field, short, name string
	capacity           int64
}

func lineLimits(rpm, tpm, tpd, concurrent int64, further []tier.Limit) []lineLimit {
	out := []lineLimit{{"rpm_limit", "rpm", "requests per minute", rpm}, {"tpm_limit", "tpm", "tokens per minute", tpm}, {"tpd_limit", "tpd", "tokens per day", tpd},
		{"concurrent_limit", "concurrent", "requests at once", concurrent}}
	for _, l := range further {
		out = append(out, lineLimit{"limits", l.Counts + "/" + l.Window, strings.ReplaceAll(l.Counts, "_", " ") + " per " + l.Window, l.Capacity})
	}
	return out
}

// limitRows are the rows of a table of limits: the limit, its amount, and whose it is (from tells, by field).
func limitRows(ls []lineLimit, groups []tier.ModelLimits, from func(field string) string) (rows [][]string) {
	row := func(name, field string, capacity int64) {
		rows = append(rows, []string{name, amount(capacity), from(field)})
	}
	for _, l := range ls {
		row(l.name, l.field, l.capacity)
	}
	for _, g := range groups {
		for _, l := range lineLimits(g.RPMLimit, g.TPMLimit, g.TPDLimit, g.ConcurrentLimit, g.Limits) {
			if l.capacity != 0 {
				row(g.Group+" ("+strings.Join(g.Models, ", ")+"): "+l.name, "model_limits", l.capacity)
			}
		}
	}
	return rows
}

// modelsText is a list of models for people.
func modelsText(models []string) string {
	if len(models) == 0 {
		return wordAll
	}
	return strings.Join(models, ", ")
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
