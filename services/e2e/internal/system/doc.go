// Package system runs the real services in this process, each by its own app.Run, on stores that somebody else has started. It is what
// the tests of the whole path and the benchmark stand on.
package system
