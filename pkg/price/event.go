package price

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/tollgate-dev/tollgate/pkg/usage"
)

// EventType is the CloudEvents type of a change of the price book.
const EventType = "dev.tollgate.price.changed.v1"

// SchemaVersion of the events that this code writes.
const SchemaVersion = 1

// Name is a price's name: the key of its events, by which the topic is compacted, so that the latest of every (model, valid_from) stays. A model's name
// holds no colon.
func Name(model string, validFrom time.Time) string {
	return BookName(model) + ":" + usage.At(validFrom).String()
}

// BookName is the name of all prices of a model.
func BookName(model string) string { return "price:" + model }

// Changed is the value of a price's event (schemas/events/price-changed.v1.schema.json). Key: Name.
type Changed struct {
	EventID       uuid.UUID  `json:"event_id"`
	SchemaVersion int        `json:"schema_version"`
	Model         string     `json:"model"`
	ValidFrom     usage.Time `json:"valid_from"`
	Version       int64      `json:"version"` // of the model's prices, all together
	ChangedAt     usage.Time `json:"changed_at"`
	Actor         string     `json:"actor"`
	Reason        string     `json:"reason,omitempty"`
	Before        *Amounts   `json:"before"` // null: no price began at that instant
	After         *Amounts   `json:"after"`
}

// Amounts are a price's decimal strings, of its currency, for a million tokens.
type Amounts struct {
	Currency    string `json:"currency"`
	Input       string `json:"input_per_million"`
	CachedInput string `json:"cached_input_per_million"`
	Output      string `json:"output_per_million"`
}

// AmountsOf gives the shortest exact text of a price.
func AmountsOf(p Price) Amounts {
	return Amounts{Currency: p.Currency, Input: p.Input.String(), CachedInput: p.CachedInput.String(), Output: p.Output.String()}
}

// Price reads amounts back. Errors: one *tier.FieldError per invalid amount, joined.
func (a Amounts) Price(model string, validFrom time.Time) (Price, error) {
	p := Price{Model: model, ValidFrom: validFrom.UTC(), Currency: a.Currency}
	var errs [3]error
	p.Input, errs[0] = Parse("input_per_million", a.Input)
	p.CachedInput, errs[1] = Parse("cached_input_per_million", a.CachedInput)
	p.Output, errs[2] = Parse("output_per_million", a.Output)
	return p, errors.Join(errs[:]...)
}

// Decode reads an event and checks what it says. Fields that this version doesn't know are passed over.
func Decode(value []byte) (Changed, Price, error) {
	var c Changed
	if err := json.Unmarshal(value, &c); err != nil {
		return Changed{}, Price{}, fmt.Errorf("price event: %w", err)
	}
	if c.SchemaVersion != SchemaVersion {
		return Changed{}, Price{}, fmt.Errorf("price event: schema_version is %d, only %d is known", c.SchemaVersion, SchemaVersion)
	}
	if c.Version < 1 || c.Actor == "" || c.After == nil {
		return Changed{}, Price{}, fmt.Errorf("price event %s: version, actor and after must be there", c.EventID)
	}
	p, err := c.After.Price(c.Model, time.Time(c.ValidFrom))
	if err == nil {
		err = p.Validate()
	}
	if err != nil {
		return Changed{}, Price{}, fmt.Errorf("price event %s: %w", c.EventID, err)
	}
	return c, p, nil
}
