// Package app is the command line of Tollgate, for admins, finance and operators. It calls the HTTP APIs and reads the EVENT log and the LEDGER as any
// client may; there is no way around the services, but for what repairs a store: rebuild buckets writes to Redis, by the limiter's own script, rebuild ledger
// to ClickHouse, by the ledger's own writer, and rebuild quotas --repair to Postgres.
//
// One file a command; each checks its flags, calls a package that does the work, and shows the answer. The exit codes are a contract (app.go).
// What finance's commands need is TOLLGATE_CLICKHOUSE_HTTP_URL with TOLLGATE_FINANCE_USER and …_PASSWORD: an account that can only read the views.
package app
