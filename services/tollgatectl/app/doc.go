// Package app is the command line of Tollgate, for admins, finance and operators. It calls the HTTP APIs and reads the LEDGER as any
// client may; there is no way around the services.
package app
