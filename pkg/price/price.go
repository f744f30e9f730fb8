package price

import (
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/shopspring/decimal"
	"golang.org/x/text/currency"

	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
	"github.com/tollgate-dev/tollgate/pkg/usage"
)

// DefaultCurrency is that of a price that names none.
const DefaultCurrency = "USD"

// MaxDigits is how many digits a price may have before its point, and how many after it.
const MaxDigits = 12

// Price is what a million tokens of a model cost from ValidFrom on. Cached input tokens are part of the input: they cost CachedInput instead of
// Input.
type Price struct {
	Model       string
	ValidFrom   time.Time // whole milliseconds
	Currency    string    // ISO 4217
	Input       decimal.Decimal
	CachedInput decimal.Decimal
	Output      decimal.Decimal
}

// Equal reports whether both prices say the same.
func (p Price) Equal(o Price) bool { return p.ValidFrom.Equal(o.ValidFrom) && p.SameAmounts(o) }

// SameAmounts reports whether both prices are the same but for when they begin.
func (p Price) SameAmounts(o Price) bool {
	return p.Model == o.Model && p.Currency == o.Currency && p.Input.Equal(o.Input) && p.CachedInput.Equal(o.CachedInput) && p.Output.Equal(o.Output)
}

var form = regexp.MustCompile(fmt.Sprintf(`^[0-9]{1,%d}(\.[0-9]{1,%d})?$`, MaxDigits, MaxDigits))

var errForm = fmt.Errorf(`must be a decimal number in a string, such as "0.15": at most %d digits before and %d after the point, no sign, no exponent`, MaxDigits, MaxDigits)

// Parse reads a price exactly. field names it in the *tier.FieldError.
func Parse(field, text string) (decimal.Decimal, error) {
	if !form.MatchString(text) {
		return decimal.Decimal{}, &tier.FieldError{Field: field, Err: errForm}
	}
	d, err := decimal.NewFromString(text)
	if err != nil {
		return decimal.Decimal{}, &tier.FieldError{Field: field, Err: errForm}
	}
	return d, nil
}

// CheckInstant tells why a price can't begin at an instant; nil if it can. Events are exact to the millisecond, so a price can't be more so.
func CheckInstant(at time.Time) error {
	if err := usage.CheckYear(at); err != nil {
		return &tier.FieldError{Field: "valid_from", Err: err}
	}
	if !at.Equal(at.Truncate(time.Millisecond)) {
		return &tier.FieldError{Field: "valid_from", Err: errors.New("must be a whole number of milliseconds")}
	}
	return nil
}

// Validate returns one *tier.FieldError per invalid field, joined; nil if all are good.
func (p Price) Validate() error {
	errs := []error{CheckInstant(p.ValidFrom), checkCurrency(p.Currency)}
	if err := subject.ValidateID(p.Model); err != nil {
		errs = append(errs, &tier.FieldError{Field: "model", Err: err})
	}
	for _, f := range []struct {
		field string
		d     decimal.Decimal
	}{{"input_per_million", p.Input}, {"cached_input_per_million", p.CachedInput}, {"output_per_million", p.Output}} {
		if _, err := Parse(f.field, f.d.String()); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// hundredths is the scale of currencies that are billed to the cent.
const hundredths = 2

// checkCurrency refuses currencies without cents: invoice lines are rounded to the hundredth.
func checkCurrency(code string) error {
	unit, err := currency.ParseISO(code)
	if err != nil || unit.String() != code {
		return &tier.FieldError{Field: "currency", Err: errors.New("must be a currency of ISO 4217 in capitals, such as USD or EUR")}
	}
	if scale, _ := currency.Standard.Rounding(unit); scale != hundredths {
		return &tier.FieldError{Field: "currency", Err: fmt.Errorf("has no hundredths, to which invoice lines are rounded: %s has %d decimals", code, scale)}
	}
	return nil
}
