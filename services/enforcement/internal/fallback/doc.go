// Package fallback is the DECISION stage while Redis is away.
package fallback
