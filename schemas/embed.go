// Package schemas holds the contracts: the OpenAPI 3.1 description of each HTTP API and the JSON Schema of each event with
// golden examples. Handlers and events are tested against these files.
//
// A golden example that has landed is never edited: a changed event gets a new schema version and a new example beside the old ones.
package schemas

import "embed"

// FS holds openapi/*.yaml and events/*.json, with golden examples under events/examples.
//
//go:embed all:openapi all:events
var FS embed.FS
