package pricebook

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tollgate-dev/tollgate/pkg/price"
	"github.com/tollgate-dev/tollgate/pkg/subject"
	"github.com/tollgate-dev/tollgate/pkg/tier"
	"github.com/tollgate-dev/tollgate/pkg/usage"
	"github.com/tollgate-dev/tollgate/services/consumer/internal/consume"
)

// Price is one price as its latest event says.
type Price struct {
	price.Price
	Version   int64
	ChangedAt time.Time
	Actor     string
}

// Zone is the time zone of an org's days and months.
type Zone struct {
	OrgID     string
	Name      string // IANA
	Version   int64
	ChangedAt time.Time
}

// quotaChanged is what a QuotaChanged says of an org's zone.
type quotaChanged struct {
	SchemaVersion int        `json:"schema_version"`
	Subject       string     `json:"subject"`
	Version       int64      `json:"version"`
	ChangedAt     usage.Time `json:"changed_at"`
	After         *struct {
		TimeZone string `json:"time_zone"`
	} `json:"after"` // null: the org's pool was deleted, and its zone with it
}

const (
	typeHeader   = "ce_type"
	orgPrefix    = "org:"
	quotaVersion = 1
)

func eventType(m consume.Message) string {
	for _, h := range m.Headers {
		if h.Key == typeHeader {
			return h.Value
		}
	}
	return ""
}

// decode reads what a message says of a price or of a zone; both nil: of neither.
func decode(m consume.Message) (*Price, *Zone, error) {
	switch t := eventType(m); {
	case t == price.EventType:
		c, p, err := price.Decode(m.Value)
		if err != nil {
			return nil, nil, err
		}
		return &Price{p, c.Version, time.Time(c.ChangedAt), c.Actor}, nil, nil
	case t == usage.QuotaEventType && bytes.HasPrefix(m.Key, []byte(orgPrefix)):
		z, err := decodeZone(m.Value)
		return nil, z, err
	}
	return nil, nil, nil
}

func decodeZone(value []byte) (*Zone, error) {
	var c quotaChanged
	if err := json.Unmarshal(value, &c); err != nil {
		return nil, fmt.Errorf("quota event: %w", err)
	}
	org, ok := strings.CutPrefix(c.Subject, orgPrefix)
	switch {
	case c.SchemaVersion != quotaVersion:
		return nil, fmt.Errorf("quota event: schema_version is %d, only %d is known", c.SchemaVersion, quotaVersion)
	case !ok || subject.ValidateID(org) != nil:
		return nil, errors.New("quota event: subject is not that of an org, as its key is")
	case c.Version < 1:
		return nil, errors.New("quota event: version must be at least 1")
	}
	z := &Zone{OrgID: org, Name: tier.UTC, Version: c.Version, ChangedAt: time.Time(c.ChangedAt)}
	if c.After != nil && c.After.TimeZone != "" {
		z.Name = c.After.TimeZone
	}
	return z, nil
}
