// Package kafkausage is the EVENT stage of enforcement: it hands usage records to Kafka (usage.records.v1) as CloudEvents.
//
// Usage returns when all in-sync replicas have the record. Concurrent callers share batches, so one acknowledgement serves many.
// Rejection queues and returns at once; one goroutine sends what is queued.
//
// # When Kafka fails
//
//   - away or slow: Usage returns an error after Timeout at the latest, ErrBusy at once when MaxPending records are already waiting.
//     The record may still arrive later (segmentio/kafka-go #1427): whoever repeats it sends the same event_id, which removes the
//     second. Rejections are tried again until they arrive or the queue is full; then new ones are dropped and counted
//     (tollgate_events_sampled_total).
//   - refuses a batch for one of its records (too large, invalid): a broker refuses the whole batch (kafka-go #777), so each of its
//     records is sent once more alone. Only the bad one fails.
//   - closes idle connections: the client drops its own after 30 s, well before a broker's 10 minutes, and tries anew.
//   - the topic is missing: an error. It is not made here, where it would get the broker's defaults (partitions, retention).
//
// # When this process dies
//
// Usage that was not acknowledged was not answered either: the caller repeats it. Queued rejections are lost.
package kafkausage
