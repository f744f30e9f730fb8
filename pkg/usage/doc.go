// Package usage is the EVENT stage: what one request used, as Kafka carries it and the ledger stores it.
//
// A Record's event_id is derived from its subject, its request_id and its kind, so whoever sends it again (a caller's retry, a
// producer's, a replayed spool, a redelivered batch) sends the same id, and everyone downstream can drop the repeat. Encode and
// Decode speak CloudEvents 1.0 in Kafka binary mode: attributes as ce_* headers, the record as the JSON value. The contract is
// schemas/events/usage-record.v1.schema.json.
//
// The package is pure: it knows no Kafka client, SQL or HTTP.
package usage
