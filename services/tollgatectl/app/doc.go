// Package app is the command line of Tollgate, for admins, finance and operators. It calls the HTTP APIs and reads the EVENT log and the LEDGER as any
// client may; there is no way around the services, but for what repairs a store: rebuild buckets writes to Redis, by the limiter's own script, rebuild ledger
// to ClickHouse, by the ledger's own writer, and rebuild quotas --repair to Postgres.
//
// One file a command; each checks its flags, calls a package that does the work, and shows the answer. The exit codes are a contract (fail.go).
// Admins' commands call the quota API by pkg/client (admin.go): --output json is its answer as it came. A call is repeated where it can't have arrived, or where
// the same call twice is one: reads, changes without a version, and POSTs, under one Idempotency-Key. A set command reads first and is guarded by the
// version it read, so that what it keeps, and what it has asked about, is what is there.
//
// No flag takes a secret; none is printed but a new one, once, as the answer.
// What finance's commands need is TOLLGATE_CLICKHOUSE_HTTP_URL with TOLLGATE_FINANCE_USER and …_PASSWORD: an account that can only read the views.
package app
