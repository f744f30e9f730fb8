// Package app is Tollgate in one process: every service by its own app.Run, on embedded stores, for a first look and for development.
// It starts, in this order, the stores, the topics, quota (which migrates Postgres), consumer (which migrates ClickHouse) and, once the embedded
// Redis's buckets have been restored from the ledger, enforcement; shows them at work; and stops them in the reverse order.
package app
