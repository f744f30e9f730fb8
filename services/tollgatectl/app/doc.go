// Package app is the command line of Tollgate, for admins, finance and operators. It calls the HTTP APIs and reads the LEDGER as any
// client may; there is no way around the services, but for what repairs a
// store: rebuild buckets writes to Redis, by the limiter's own script.
package app
