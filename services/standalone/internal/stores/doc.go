// Package stores starts the four stores of standalone: Redis for DECISIONs, Postgres for CONTROL, Kafka for EVENTs and ClickHouse for the
// LEDGER. Each is embedded, unless its TOLLGATE_… variable names a real one; then that is used and nothing is started.
//
// Kafka, Postgres and ClickHouse keep their data below the data directory; the embedded Redis forgets at a stop.
package stores
