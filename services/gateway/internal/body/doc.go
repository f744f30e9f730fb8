// Package body reads a REQUEST's JSON without changing it, and edits it in place: every byte that no edit names stays as it came, so that unknown
// fields, big integers, escapes, key order and white space reach the inference server untouched (case B123). Nothing is decoded and encoded again,
// and nothing is copied: an edited body is read from pieces of the one that came.
//
// A field that Tollgate acts on must be read as the inference server reads it. Parsers differ on a name that comes twice (the first wins, the
// last, or neither) and on its case (Go's encoding/json takes "Model" for "model"). So of these fields, and of these alone, a second one, or one
// in another case, is refused.
package body
