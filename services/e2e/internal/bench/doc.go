// Package bench measures the DECISION path on real stores: over HTTP as a caller meets it, the limiter's script alone, and by
// redis-benchmark, as a yardstick, what Redis itself can do with the same script and with an empty one. All in one run on one machine.
package bench
