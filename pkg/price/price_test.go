package price

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/tier"
)

func TestPricesAreReadExactly(t *testing.T) {
	for text, want := range map[string]string{"0.15": "0.15", "3": "3", "3.00": "3", "0": "0", "0.000000000001": "0.000000000001",
		"999999999999.999999999999": "999999999999.999999999999"} {
		d, err := Parse("input_per_million", text)
		if err != nil || d.String() != want {
			t.Errorf("%q reads as %s, %v", text, d, err)
		}
	}
	for _, text := range []string{"", " 1", "1 ", "-1", "-0", "+1", "1e3", "1E3", "NaN", "Inf", "Infinity", ".5", "5.", "1,5", "1_000", "0x1", "0.0000000000001", "1000000000000", "1.2.3", "١"} {
		_, err := Parse("output_per_million", text)
		var fe *tier.FieldError
		if !errors.As(err, &fe) || fe.Field != "output_per_million" {
			t.Errorf("%q: %v, want a fault of the field", text, err)
		}
	}
}

func TestOnlyCurrenciesWithCents(t *testing.T) {
	for code, good := range map[string]bool{"USD": true, "EUR": true, "CHF": true, "JPY": false, "KWD": false, "usd": false, "": false, "QQQ": false, "US": false, "Dollar": false} {
		if err := checkCurrency(code); (err == nil) != good {
			t.Errorf("%q: %v", code, err)
		}
	}
}

func TestPriceNamesEveryFault(t *testing.T) {
	err := Price{Model: "a b", ValidFrom: time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC), Currency: "X"}.Validate()
	for _, field := range []string{"model", "valid_from", "currency"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s is not named: %v", field, err)
		}
	}
	if err := CheckInstant(time.Date(2026, 1, 1, 0, 0, 0, 1, time.UTC)); err == nil {
		t.Error("a nanosecond was taken")
	}
}

// Compaction keeps the last event of each key, so two prices never share one.
func TestEveryPriceHasAKeyOfItsOwn(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	names := map[string]bool{}
	for _, model := range []string{"a", "a@b", "a/b", "a.b"} {
		for _, from := range []time.Time{at, at.Add(time.Millisecond), at.AddDate(1, 0, 0)} {
			names[Name(model, from)] = true
		}
	}
	if len(names) != 12 {
		t.Errorf("12 prices have %d names: %v", len(names), names)
	}
	if berlin := time.FixedZone("", 3600); Name("a", at) != Name("a", at.In(berlin)) {
		t.Error("the zone in which an instant is written makes another key")
	}
}
