package usage

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
)

// Topics of DESIGN §6.
const (
	Topic             = "usage.records.v1"
	DeadLetterTopic   = "usage.records.v1.dlq"
	QuotaTopic        = "quota.changes.v1"
	Partitions        = 12
	EventType         = "dev.tollgate.usage.record.v1"
	QuotaEventType    = "dev.tollgate.quota.changed.v1"
	SpecVersion       = "1.0"
	ContentTypeHeader = "content-type"
	JSON              = "application/json"
)

// Header is one Kafka header.
type Header struct{ Key, Value string }

// Message is one Kafka message without its client's types.
type Message struct {
	Key     []byte
	Headers []Header
	Value   []byte
}

// Encode checks a record and gives its message. source is the CloudEvents source, "/tollgate/enforcement" say.
func Encode(r Record, source string) (Message, error) {
	if err := r.Validate(); err != nil {
		return Message{}, fmt.Errorf("usage record %s: %w", r.EventID, err)
	}
	value, err := json.Marshal(r)
	if err != nil {
		return Message{}, fmt.Errorf("usage record %s: %w", r.EventID, err)
	}
	return Message{Key: []byte(r.Key()), Value: value, Headers: CloudEventHeaders(r.EventID.String(), EventType, source, r.Subject().String(), r.Timestamp)}, nil
}

// CloudEventHeaders gives the required attributes of CloudEvents 1.0 in Kafka binary mode.
func CloudEventHeaders(id, eventType, source, subj string, at Time) []Header {
	return []Header{
		{"ce_specversion", SpecVersion}, {"ce_id", id}, {"ce_type", eventType}, {"ce_source", source}, {"ce_subject", subj},
		{"ce_time", at.String()}, {ContentTypeHeader, JSON},
	}
}

// Reasons a message can't be used; each is a value of the DLQ's reason header and of a metric label.
const (
	ReasonEmpty         = "empty_value"
	ReasonNotJSON       = "not_json"
	ReasonSchemaVersion = "unknown_schema_version"
	ReasonInvalid       = "invalid_record"
)

// DecodeError says why a message can't be used. No retry helps it.
type DecodeError struct {
	Reason string
	Err    error
}

func (e *DecodeError) Error() string { return e.Reason + ": " + e.Err.Error() }
func (e *DecodeError) Unwrap() error { return e.Err }

// requiredFields must be present in the JSON, each of them: an absent one would silently read as "" or 0. Fields that were added within
// version 1 are optional (omitzero).
var requiredFields = jsonNames(reflect.TypeFor[Record]())

func jsonNames(t reflect.Type) []string {
	var names []string
	for i := range t.NumField() {
		if name, options, _ := strings.Cut(t.Field(i).Tag.Get("json"), ","); options == "" {
			names = append(names, name)
		}
	}
	return names
}

// Decode reads a message's value and checks it. Any error is a *DecodeError. Fields that this version doesn't know are passed over:
// a newer producer may add some within the same schema version.
func Decode(value []byte) (Record, error) {
	r, own := decodeOwn(value)
	if !own {
		if err := unusable(value); err != nil {
			return Record{}, err
		}
		if err := json.Unmarshal(value, &r); err != nil {
			return Record{}, &DecodeError{ReasonInvalid, err}
		}
	}
	if err := r.Validate(); err != nil {
		return Record{}, &DecodeError{ReasonInvalid, err}
	}
	return r, nil
}

// decodeOwn reads a value that is, to the byte, what Encode makes of the record: it lacks no field. So it tells in one pass each way what
// unusable needs three for, and an event log of this version is read at more than twice the rate.
func decodeOwn(value []byte) (r Record, own bool) {
	if json.Unmarshal(value, &r) != nil || r.SchemaVersion != SchemaVersion {
		return Record{}, false
	}
	again, err := json.Marshal(r)
	if err != nil || !bytes.Equal(again, value) {
		return Record{}, false
	}
	return r, true
}

// unusable tells why a value is no record of this version, as a *DecodeError; nil if only its fields' contents may be wrong.
func unusable(value []byte) error {
	if len(bytes.TrimSpace(value)) == 0 {
		return &DecodeError{ReasonEmpty, errors.New("the value is empty or a tombstone")}
	}
	var present map[string]json.RawMessage
	if err := json.Unmarshal(value, &present); err != nil || present == nil {
		if err == nil {
			err = io.ErrUnexpectedEOF
		}
		var te *json.UnmarshalTypeError
		if errors.As(err, &te) {
			return &DecodeError{ReasonInvalid, errors.New("the value is not a JSON object")}
		}
		return &DecodeError{ReasonNotJSON, err}
	}
	var v struct {
		SchemaVersion int `json:"schema_version"`
	}
	if err := json.Unmarshal(value, &v); err != nil || v.SchemaVersion != SchemaVersion {
		return &DecodeError{ReasonSchemaVersion, fmt.Errorf("schema_version is %s, only %d is known", present["schema_version"], SchemaVersion)}
	}
	for _, f := range requiredFields {
		if raw, ok := present[f]; !ok || bytes.Equal(raw, []byte("null")) {
			return &DecodeError{ReasonInvalid, fmt.Errorf("%s: is missing", f)}
		}
	}
	return nil
}
