package app

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/segmentio/kafka-go"
	"github.com/shopspring/decimal"

	"github.com/tollgate-dev/tollgate/pkg/clickhouseledger"
	"github.com/tollgate-dev/tollgate/pkg/config"
	"github.com/tollgate-dev/tollgate/pkg/usage"
)

// storeAll has the ledger's writer store records, many at a time.
func (r *rig) storeAll(records []usage.Record) {
	r.t.Helper()
	l, err := clickhouseledger.Open(r.cfg.ClickHouseURL.Reveal())
	if err != nil {
		r.t.Fatal(err)
	}
	defer l.Close()
	offset := int64(1) << 40
	for chunk := range slices.Chunk(records, 50_000) {
		events := make([]clickhouseledger.Event, len(chunk))
		for i, rec := range chunk {
			events[i] = clickhouseledger.Event{Record: rec, Topic: r.cfg.Topic, Offset: offset}
			offset++
		}
		if _, err := l.Store(context.Background(), events); err != nil {
			r.t.Fatal(err)
		}
	}
}

// B98: money is exact until the one rounding of an invoice's line, half to even.
func TestB98MoneyIsRoundedOnceAtTheInvoiceLine(t *testing.T) {
	r := newMoneyRig(t)
	r.start()
	r.tell(costs("m3", "2026-01-01T00:00:00Z", 1, "3.00", "3.00", "1"), costs("m015", "2026-01-01T00:00:00Z", 1, "0.15", "0.15", "1"),
		costs("m01", "2026-01-01T00:00:00Z", 1, "0.10", "0.10", "1"), costs("m03", "2026-01-01T00:00:00Z", 1, "0.30", "0.30", "1"))
	const at = "2026-05-06T12:00:00Z"
	one := []usage.Record{used("a", "m3", at, 6666, 0, 0)}
	for range 1000 {
		one = append(one, used("b", "m015", at, 100, 0, 0))
	}
	for _, org := range []string{"c1", "c2", "c3"} {
		one = append(one, used(org, "m01", at, 1_000_000, 0, 0))
	}
	one = append(one, used("e", "m03", at, 83_333, 0, 0), used("e", "m03", "2026-05-07T12:00:00Z", 1, 0, 0)) // 0.0250002: rounded by day it would be 0.02
	one = append(one, used("f", "m01", at, 250_000, 0, 0))                                                   // 0.025: half goes to the even cent
	r.send(one...)
	r.awaitEvents(uint64(len(one)))
	million := make([]usage.Record, 1_000_000)
	for i := range million {
		million[i] = used("d", "m03", at, 1, 0, 0)
	}
	r.storeAll(million)
	r.awaitRows(4, "SELECT count() FROM prices")
	want := []string{
		"2026-05-06 a m3 6666 0 0 0.019998 USD",
		"2026-05-06 b m015 100000 0 0 0.015 USD",
		"2026-05-06 c1 m01 1000000 0 0 0.1 USD", "2026-05-06 c2 m01 1000000 0 0 0.1 USD", "2026-05-06 c3 m01 1000000 0 0 0.1 USD",
		"2026-05-06 d m03 1000000 0 0 0.3 USD",
		"2026-05-06 e m03 83333 0 0 0.0249999 USD", "2026-05-06 f m01 250000 0 0 0.025 USD",
		"2026-05-07 e m03 1 0 0 0.0000003 USD",
	}
	if diff := cmp.Diff(want, r.say(costLines)); diff != "" {
		t.Errorf("cost_daily (-want +got):\n%s", diff)
	}
	want = []string{
		"2026-05-01 a m3 6666 0 at 3 3 1 = 0.02 USD",
		"2026-05-01 b m015 100000 0 at 0.15 0.15 1 = 0.02 USD",
		"2026-05-01 c1 m01 1000000 0 at 0.1 0.1 1 = 0.1 USD", "2026-05-01 c2 m01 1000000 0 at 0.1 0.1 1 = 0.1 USD", "2026-05-01 c3 m01 1000000 0 at 0.1 0.1 1 = 0.1 USD",
		"2026-05-01 d m03 1000000 0 at 0.3 0.3 1 = 0.3 USD",
		"2026-05-01 e m03 83334 0 at 0.3 0.3 1 = 0.03 USD",
		"2026-05-01 f m01 250000 0 at 0.1 0.1 1 = 0.02 USD",
	}
	if diff := cmp.Diff(want, r.say(invoiceLines)); diff != "" {
		t.Errorf("invoice_lines (-want +got):\n%s", diff)
	}
	if got := r.say("SELECT toString(sum(amount)) AS line FROM invoice_lines WHERE model = 'm01' AND org_id LIKE 'c%'"); got[0] != "0.3" {
		t.Errorf("three lines of 0.10 add up to %s", got[0])
	}
}

// B104: usage lands on the day and in the month of the org's own zone, on days of 23 and 25 hours, too, and none is lost between days.
func TestB104DaysAndMonthsAreThoseOfTheOrgsZone(t *testing.T) {
	r := newMoneyRig(t)
	r.start()
	r.tell(costs("grok-2", "2026-01-01T00:00:00Z", 1, "1000000", "1000000", "1"), lives("berlin", "Europe/Berlin", 1), lives("kathmandu", "Asia/Kathmandu", 1))
	records := []usage.Record{
		used("berlin", "grok-2", "2026-03-29T21:59:59Z", 1, 0, 0), used("berlin", "grok-2", "2026-03-29T22:00:00Z", 2, 0, 0),
		used("berlin", "grok-2", "2026-10-25T22:30:00Z", 4, 0, 0), used("berlin", "grok-2", "2026-10-25T23:00:00Z", 8, 0, 0),
		used("berlin", "grok-2", "2026-10-31T22:59:59.999Z", 16, 0, 0), used("berlin", "grok-2", "2026-10-31T23:00:00Z", 32, 0, 0),
		used("kathmandu", "grok-2", "2026-03-29T18:14:59.999Z", 1, 0, 0), used("kathmandu", "grok-2", "2026-03-29T18:15:00Z", 2, 0, 0),
		used("nobody", "grok-2", "2026-03-29T23:59:59.999Z", 1, 0, 0), used("nobody", "grok-2", "2026-03-30T00:00:00Z", 2, 0, 0),
	}
	r.send(records...)
	r.awaitEvents(uint64(len(records)))
	r.awaitRows(2, "SELECT count() FROM org_zones")
	want := []string{
		"2026-03-29 berlin grok-2 1 0 0 1 USD", "2026-03-29 kathmandu grok-2 1 0 0 1 USD", "2026-03-29 nobody grok-2 1 0 0 1 USD",
		"2026-03-30 berlin grok-2 2 0 0 2 USD", "2026-03-30 kathmandu grok-2 2 0 0 2 USD", "2026-03-30 nobody grok-2 2 0 0 2 USD",
		"2026-10-25 berlin grok-2 4 0 0 4 USD", "2026-10-26 berlin grok-2 8 0 0 8 USD", "2026-10-31 berlin grok-2 16 0 0 16 USD",
		"2026-11-01 berlin grok-2 32 0 0 32 USD",
	}
	if diff := cmp.Diff(want, r.say(costLines)); diff != "" {
		t.Errorf("cost_daily (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"2026-03-01 3", "2026-10-01 28", "2026-11-01 32"},
		r.say("SELECT concat(toString(month), ' ', toString(input_tokens)) AS line FROM invoice_lines WHERE org_id = 'berlin' ORDER BY line")); diff != "" {
		t.Errorf("invoice_lines (-want +got):\n%s", diff)
	}

	// An hour's usage is one token: each day has as many as it has hours.
	r.tell(lives("hours", "Europe/Berlin", 1))
	var hours []usage.Record
	for at := instantOf("2026-02-28T23:00:00Z"); at.Before(instantOf("2026-10-31T23:00:00Z")); at = at.Add(time.Hour) {
		hours = append(hours, used("hours", "grok-2", at.Format(time.RFC3339), 1, 0, 0))
	}
	r.storeAll(hours)
	r.awaitRows(1, "SELECT count() FROM org_zones WHERE org_id = 'hours'")
	months := r.say(`SELECT concat(toString(toStartOfMonth(day)), ' ', toString(count()), ' days ', toString(sum(input_tokens)), ' ', arrayStringConcat(
		arrayMap(d -> concat(toString(d.1), '=', toString(d.2)), arrayFilter(d -> d.2 != 24, arraySort(groupArray((day, input_tokens))))), ',')) AS line
		FROM cost_daily WHERE org_id = 'hours' GROUP BY toStartOfMonth(day) ORDER BY line`)
	wantMonths := []string{"2026-03-01 31 days 743 2026-03-29=23", "2026-04-01 30 days 720 ", "2026-05-01 31 days 744 ", "2026-06-01 30 days 720 ", "2026-07-01 31 days 744 ",
		"2026-08-01 31 days 744 ", "2026-09-01 30 days 720 ", "2026-10-01 31 days 745 2026-10-25=25"}
	if diff := cmp.Diff(wantMonths, months); diff != "" {
		t.Errorf("hours of each month (-want +got):\n%s", diff)
	}
	if n := r.mustCount("SELECT toUInt64(sum(input_tokens)) FROM cost_daily WHERE org_id = 'hours'"); n != uint64(len(hours)) {
		t.Errorf("%d hours on the bill, %d were used", n, len(hours))
	}
}

func TestEachEventHasThePriceOfItsOwnInstant(t *testing.T) {
	r := newMoneyRig(t)
	r.start()
	r.tell(costs("grok-2", "2026-05-01T00:00:00Z", 1, "1", "0.5", "2"), costs("grok-2", "2026-05-10T00:00:00Z", 2, "10", "5", "20"),
		costs("grok-2", "2026-05-20T12:07:30.500Z", 3, "1", "0.5", "2"), costs("grok-2", "2026-05-20T12:09:00Z", 4, "100", "50", "200"))
	records := []usage.Record{
		used("acme", "grok-2", "2026-04-30T23:59:59.999Z", 7, 0, 0), // before the first price
		used("acme", "grok-2", "2026-05-01T00:00:00Z", 1_000_000, 400_000, 1_000_000),
		used("acme", "grok-2", "2026-05-09T23:59:59.999Z", 1_000_000, 0, 0), used("acme", "grok-2", "2026-05-10T00:00:00Z", 1_000_000, 0, 0),
		used("acme", "grok-2", "2026-05-20T12:07:30.499Z", 1_000_000, 0, 0), used("acme", "grok-2", "2026-05-20T12:07:30.500Z", 1_000_000, 0, 0),
		used("acme", "grok-2", "2026-05-20T12:08:59.999Z", 1_000_000, 0, 0), used("acme", "grok-2", "2026-05-20T12:09:00Z", 1_000_000, 0, 0),
		used("acme", "grok-2", "2026-05-20T12:15:00Z", 1_000_000, 0, 0),
		used("acme", "grok-9", "2026-05-20T12:08:00Z", 3, 1, 5), // a model without a price, in the same quarter
	}
	r.send(records...)
	r.awaitEvents(uint64(len(records)))
	r.awaitRows(4, "SELECT count() FROM prices")
	want := []string{
		"2026-04-01 acme grok-2 7 0 at ? ? ? = unpriced ",
		"2026-05-01 acme grok-2 2000000 0 at 10 5 20 = 20 USD",
		"2026-05-01 acme grok-2 2000000 0 at 100 50 200 = 200 USD",
		"2026-05-01 acme grok-2 4000000 1000000 at 1 0.5 2 = 5.8 USD", // both times that the price was 1
		"2026-05-01 acme grok-9 3 5 at ? ? ? = unpriced ",
	}
	if diff := cmp.Diff(want, r.say(invoiceLines)); diff != "" {
		t.Errorf("invoice_lines (-want +got):\n%s", diff)
	}
	want = []string{
		"2026-04-30 acme grok-2 7 0 0 unpriced ", "2026-05-01 acme grok-2 1000000 400000 1000000 2.8 USD",
		"2026-05-09 acme grok-2 1000000 0 0 1 USD", "2026-05-10 acme grok-2 1000000 0 0 10 USD", "2026-05-20 acme grok-2 5000000 0 0 212 USD",
		"2026-05-20 acme grok-9 3 1 5 unpriced ",
	}
	if diff := cmp.Diff(want, r.say(costLines)); diff != "" {
		t.Errorf("cost_daily (-want +got):\n%s", diff)
	}
	if got := r.say("SELECT concat(toString(unpriced), toString(count())) AS line FROM cost_daily GROUP BY unpriced ORDER BY line"); !slices.Equal(got, []string{"04", "12"}) {
		t.Errorf("unpriced: %v", got)
	}
}

// Where a price splits a quarter of an hour, costs are summed from events as they lie: one that has given way must leave neither tokens nor a row.
func TestAnEventThatGaveWayCostsNothing(t *testing.T) {
	r := newMoneyRig(t)
	r.start()
	r.tell(costs("grok-2", "2026-05-01T00:00:00Z", 1, "1", "0.5", "2"), costs("grok-2", "2026-05-20T12:07:00Z", 2, "10", "5", "20"))
	guess := used("left", "grok-2", "2026-05-20T12:06:00Z", 8_000_000, 0, 0)
	guess.Outcome = usage.Expired
	r.send(guess)
	r.awaitEvents(1)
	r.awaitRows(2, "SELECT count() FROM prices")
	if diff := cmp.Diff([]string{"2026-05-01 left grok-2 8000000 0 at 1 0.5 2 = 8 USD"}, r.say(invoiceLines)); diff != "" {
		t.Errorf("before (-want +got):\n%s", diff)
	}
	real := used("acme", "grok-2", "2026-05-20T12:08:00Z", 1_000_000, 0, 1_000_000)
	real.EventID, real.RequestID = guess.EventID, guess.RequestID
	r.send(real)
	r.awaitRows(1, "SELECT count() FROM usage_events WHERE outcome = 'completed'")
	if diff := cmp.Diff([]string{"2026-05-01 acme grok-2 1000000 1000000 at 10 5 20 = 30 USD"}, r.say(invoiceLines)); diff != "" {
		t.Errorf("invoice_lines (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"2026-05-20 acme grok-2 1000000 0 1000000 30 USD"}, r.say(costLines)); diff != "" {
		t.Errorf("cost_daily (-want +got):\n%s", diff)
	}
}

// A correction changes tokens and money of the period that it corrects, and no count of requests.
func TestAdjustmentIsNettedInTheInvoiceLine(t *testing.T) {
	r := newMoneyRig(t)
	r.start()
	r.tell(costs("grok-2", "2026-01-01T00:00:00Z", 1, "1", "0.1", "10"))
	wrong, alone := used("acme", "grok-2", "2026-05-06T12:00:00Z", 3_000_000, 1_000_000, 2_000_000), used("other", "grok-2", "2026-05-06T12:00:00Z", 0, 0, 0)
	r.send(wrong, corrects(wrong, -1_000_000, -1_000_000, -500_000), corrects(alone, 0, 0, -1_500))
	r.awaitEvents(3)
	r.awaitRows(1, "SELECT count() FROM prices")
	if diff := cmp.Diff([]string{"2026-05-01 acme grok-2 2000000 1500000 at 1 0.1 10 = 17 USD", "2026-05-01 other grok-2 0 -1500 at 1 0.1 10 = -0.02 USD"}, r.say(invoiceLines)); diff != "" {
		t.Errorf("invoice_lines (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"2026-05-06 acme grok-2 2000000 0 1500000 17 USD", "2026-05-06 other grok-2 0 0 -1500 -0.015 USD"}, r.say(costLines)); diff != "" {
		t.Errorf("cost_daily (-want +got):\n%s", diff)
	}
	if n := r.mustCount("SELECT toUInt64(sum(requests)) FROM usage_daily"); n != 1 {
		t.Errorf("%d requests, want 1", n)
	}
}

// The latest version of a price and of a zone stands, in whatever order and however often their events come; what can't be used holds nothing up.
func TestLatestPriceAndZoneStand(t *testing.T) {
	r := newMoneyRig(t)
	c := r.start()
	bad := changed("dev.tollgate.price.changed.v1", "price:x:y", map[string]any{"schema_version": 1})
	unknown := lives("acme", "Mars/Base", 9)
	r.tell(costs("grok-2", "2026-01-01T00:00:00Z", 5, "5", "5", "5"), bad, costs("grok-2", "2026-01-01T00:00:00Z", 4, "4", "4", "4"),
		lives("acme", "Europe/Berlin", 3), unknown, lives("acme", "America/New_York", 2), lives("gone", "Asia/Tokyo", 1), lives("gone", "", 2),
		kafka.Message{Key: []byte("user:u1"), Value: []byte("{}"), Headers: []kafka.Header{{Key: "ce_type", Value: []byte(usage.QuotaEventType)}}},
		kafka.Message{Key: []byte("org:acme"), Headers: []kafka.Header{{Key: "ce_type", Value: []byte(usage.QuotaEventType)}}},
		costs("grok-2", "2026-01-01T00:00:00Z", 5, "5", "5", "5"))
	stored := func(want float64) {
		t.Helper()
		r.eventually(func() string {
			if n := c.metric(`tollgate_consumer_price_book_messages_total{result="stored"}`); n < want {
				return fmt.Sprintf("%g messages are stored, want %g", n, want)
			}
			return ""
		})
	}
	stored(7)
	check := func() {
		t.Helper()
		if got := r.say("SELECT concat(model, ' ', toString(input_per_million), ' ', toString(version)) AS line FROM prices"); !slices.Equal(got, []string{"grok-2 5 5"}) {
			t.Errorf("prices: %v", got)
		}
		if got := r.say("SELECT concat(org_id, ' ', time_zone, ' ', toString(version)) AS line FROM org_zones ORDER BY line"); !slices.Equal(got, []string{"acme Europe/Berlin 3", "gone UTC 2"}) {
			t.Errorf("zones: %v", got)
		}
	}
	check()
	if got := []float64{c.metric(`tollgate_consumer_price_book_messages_total{result="unusable"}`), c.metric(`tollgate_consumer_price_book_messages_total{result="ignored"}`)}; !slices.Equal(got, []float64{3, 1}) {
		t.Errorf("unusable and ignored: %v", got)
	}
	if n := strings.Count(c.log.String(), "a change can't be used"); n != 3 {
		t.Errorf("%d lines of log tell of 3 messages", n)
	}
	c.mustStop()
	c = r.start(func(c *Config) { c.Group += "-again" }) // a new group reads the topic from its beginning
	stored(7)
	check()
}

// The views agree with the same sums made in Go by decimals and Go's own zone database, for random usage, prices and zones until 2100.
func TestCostViewsAgreeWithPlainArithmetic(t *testing.T) {
	r := newMoneyRig(t)
	r.start()
	rng := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test
	zones := map[string]string{"o1": "Europe/Berlin", "o2": "Asia/Kathmandu", "o3": "Australia/Lord_Howe", "o4": "Pacific/Chatham", "o5": "America/St_Johns", "o6": "UTC", "o7": "America/Santiago", "o8": "Africa/Casablanca"}
	type step struct {
		from          time.Time
		in, cached, o decimal.Decimal
	}
	steps := map[string][]step{}
	var told []kafka.Message
	for _, model := range []string{"a", "b", "c"} {
		for v := range 12 {
			from := instantOf("2024-01-01T00:00:00Z").AddDate(0, 3*v, rng.IntN(60)).Add(time.Duration(rng.Int64N(86_400_000)) * time.Millisecond)
			if v%3 == 0 {
				from = from.Truncate(15 * time.Minute)
			}
			text := func() string { return fmt.Sprintf("%d.%012d", rng.IntN(1000), rng.Int64N(1_000_000_000_000)) }
			in, cached, out := text(), text(), text()
			steps[model] = append(steps[model], step{from, dec(in), dec(cached), dec(out)})
			told = append(told, costs(model, from.Format(time.RFC3339Nano), int64(v+1), in, cached, out))
		}
		slices.SortFunc(steps[model], func(a, b step) int { return a.from.Compare(b.from) })
	}
	for org, zone := range zones {
		told = append(told, lives(org, zone, 1))
	}
	r.tell(told...)

	million := dec("0.000001")
	want, days := map[string]decimal.Decimal{}, map[string]decimal.Decimal{}
	var records []usage.Record
	for range 4000 {
		org, model := fmt.Sprintf("o%d", 1+rng.IntN(8)), string(rune('a'+rng.IntN(3)))
		at := instantOf("2024-06-01T00:00:00Z").Add(time.Duration(rng.Int64N(3*365*86_400_000)) * time.Millisecond)
		switch rng.IntN(4) {
		case 0: // close to a change of the price
			at = steps[model][rng.IntN(12)].from.Add(time.Duration(rng.IntN(2_000_000)-1_000_000) * time.Millisecond)
		case 1:
			at = instantOf("2030-01-01T00:00:00Z").Add(time.Duration(rng.Int64N(70*365*86_400_000)) * time.Millisecond)
		}
		input := rng.Int64N(usage.MaxTokens)
		rec := used(org, model, at.Format(time.RFC3339Nano), input, rng.Int64N(input+1), rng.Int64N(1_000_000))
		if rng.IntN(10) == 0 {
			rec = corrects(rec, -rng.Int64N(1000), -rng.Int64N(1000), rng.Int64N(1000))
		}
		records = append(records, rec)
		zone, err := time.LoadLocation(zones[org])
		if err != nil {
			t.Fatal(err)
		}
		var p *step
		for i, s := range steps[model] {
			if !s.from.After(at) {
				p = &steps[model][i]
			}
		}
		if p == nil {
			continue
		}
		n := decimal.NewFromInt
		cost := n(rec.InputTokens - rec.CachedInputTokens).Mul(p.in).Add(n(rec.CachedInputTokens).Mul(p.cached)).Add(n(rec.OutputTokens).Mul(p.o)).Mul(million)
		day := at.In(zone).Format(time.DateOnly) + " " + org + " " + model
		days[day] = days[day].Add(cost)
		line := at.In(zone).Format("2006-01") + "-01 " + org + " " + model + " " + p.in.String()
		want[line] = want[line].Add(cost)
	}
	r.awaitRows(8, "SELECT count() FROM org_zones")
	r.awaitRows(36, "SELECT count() FROM prices")
	r.storeAll(records)

	compare := func(name, query string, want map[string]string) {
		t.Helper()
		got := map[string]string{}
		for _, line := range r.say(query) {
			i := strings.LastIndexByte(line, ' ')
			got[line[:i]] = line[i+1:]
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s of %d lines (-want +got):\n%s", name, len(want), diff)
		}
	}
	texts := map[string]string{}
	for k, v := range days {
		texts[k] = v.String()
	}
	compare("cost_daily", "SELECT concat(toString(day), ' ', org_id, ' ', model, ' ', toString(cost)) AS line FROM cost_daily WHERE NOT unpriced", texts)
	texts = map[string]string{}
	for k, v := range want {
		texts[k] = v.RoundBank(2).String()
	}
	compare("invoice_lines", "SELECT concat(toString(month), ' ', org_id, ' ', model, ' ', toString(input_per_million), ' ', toString(amount)) AS line FROM invoice_lines WHERE NOT unpriced", texts)
}

// The group is the same and has committed everything; ClickHouse is a new one, empty. A start fills in prices and zones, whatever becomes of events.
func TestPricesAndZonesAreCopiedAgainIntoAClickHouseThatWasLost(t *testing.T) {
	r := newMoneyRig(t)
	c := r.start()
	r.tell(costs("m", "2026-01-01T00:00:00Z", 1, "1000000", "1", "1"), costs("m", "2026-01-01T00:00:00Z", 2, "2000000", "1", "1"), lives("acme", "Asia/Tokyo", 1))
	rec := used("acme", "m", "2026-05-31T20:00:01.000Z", 1000, 0, 0)
	r.send(rec)
	r.awaitEvents(1)
	r.awaitRows(2, "SELECT version FROM prices")
	r.awaitRows(1, "SELECT count() FROM org_zones")
	before := r.say(invoiceLines)
	if !strings.HasPrefix(before[0], "2026-06-01 acme m 1000") {
		t.Fatalf("the day is not that of the zone: %v", before)
	}
	r.awaitCommitted()
	c.mustStop()
	dsn := newDatabase(t)
	r.cfg.ClickHouseURL, r.ch = config.Secret(dsn), connect(t, dsn)
	c = r.start()
	r.awaitRows(2, "SELECT version FROM prices")
	r.awaitRows(1, "SELECT count() FROM org_zones")
	r.send(rec) // as a rebuild from the log stores it
	r.awaitEvents(1)
	if after := r.say(invoiceLines); !slices.Equal(after, before) {
		t.Errorf("lines %v, were %v", after, before)
	}
	r.tell(lives("acme", "", 2)) // what comes later is copied, too
	r.awaitRows(2, "SELECT version FROM org_zones")
	c.mustStop()
}
