// Package kafka runs a Kafka broker in this process, for the event log, which is the truth: kfake, a Go implementation of the
// protocol, on loopback, with its data in a directory.
//
// What is promised, each with a test here: an acknowledged record, a topic and a committed group offset survive Close and
// SIGKILL of the process (every batch and commit is synced to disk before it is acknowledged, unless Options.NoSync is set);
// franz-go and segmentio/kafka-go work on it, writers with all acknowledgements and group readers alike. A directory has one
// broker at a time.
//
// What kfake lacks beside Apache Kafka, as of the pinned version:
//
//   - One broker here, no replication: a topic's min.insync.replicas and the like mean nothing.
//   - No throttling, client quotas have no effect; no tiered storage; no log directories to move.
//   - One goroutine handles every request: throughput does not grow with cores.
//   - Compaction and retention run on a timer in the background and only on inactive segments, as in Kafka, but nothing else
//     of Kafka's cleaner is tunable.
//   - A group's members are forgotten at a restart (its offsets are not): clients join again by themselves.
//   - Topics are made only by Options.Topics or an admin request, never by a client that merely names one.
//   - No authentication is set up: whoever can reach the loopback port can do everything.
//
// A franz-go producer with idempotence (its default) waits for ever for the fate of a batch that was under way when the broker
// went, whatever its context and delivery timeout say, by design and on every Kafka: see kgo.AllowIdempotentProduceCancellation.
//
// Tests of crash behaviour use a real Kafka beside it (testkit/realkafka).
package kafka
