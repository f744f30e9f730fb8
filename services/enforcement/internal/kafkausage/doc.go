// Package kafkausage is the EVENT stage of enforcement: it hands usage records to Kafka (usage.records.v1) as CloudEvents.
//
// Usage returns when all in-sync replicas have the record, or when the Spool has it on disk. Concurrent callers share batches, so one
// acknowledgement serves many. Rejection queues and returns at once; one goroutine sends what is queued.
//
// # When Kafka fails
//
//   - away or slow, with a spool: a record that Kafka doesn't acknowledge in time goes to the spool: within four deviations of
//     what acknowledgements take on average, but 50 ms at least and Timeout at most. As long as anything is in
//     it, all that follow go behind, at once: so a subject's events stay in their order. One goroutine, the drain, sends the oldest until Kafka takes them,
//     and takes out what Kafka has acknowledged. When little is left, new records wait for that little and then go to Kafka again.
//     A partition that stays away holds up what is behind its events in the spool; records are answered all the same.
//   - the spool takes no more: Usage returns decide.ErrSpool.
//   - away or slow, without a spool: Usage returns an error after Timeout at the latest, ErrBusy at once when MaxPending records are
//     already waiting.
//   - a record that was given up arrives all the same, later (segmentio/kafka-go #1427): whoever repeats it, the drain or a caller, sends the
//     same event_id, by which the ledger counts it once. A repeat may come after events that followed the first; the first ones
//     are in order.
//   - refuses a batch for one of its records (too large, invalid): a broker refuses the whole batch (kafka-go #777), so each of its
//     records is sent once more alone. Only the bad one fails: with a spool it is set aside there, logged and counted, Usage returns
//     decide.ErrUnsendable if somebody waits, and it is tried again only when the service starts anew.
//   - closes idle connections: the client drops its own after 30 s, well before a broker's 10 minutes, and tries anew.
//   - the topic is missing: as if Kafka was away. It is not made here, where it would get the broker's defaults (partitions, retention).
//   - rejections are tried again until they arrive or the queue is full; then new ones are dropped and counted
//     (tollgate_events_sampled_total). They are never spooled.
//
// # What a crash costs
//
// Usage that was answered is in Kafka or in the spool, which the next process drains. Usage that was not answered is repeated by its
// caller. What was sent and not yet taken out of the spool is sent again, with the same event_id. Queued rejections are lost.
//
// A stop doesn't wait for the spool: the drain ends, what is left stays.
package kafkausage
