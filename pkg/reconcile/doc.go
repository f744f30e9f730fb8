// Package reconcile proves that EVENT (the log in Kafka) and LEDGER (ClickHouse) hold the same events with the same figures, and names
// every difference. It is pure; kafkalog and clickhousetotals below it are the two sides. It writes to neither, so nothing repeats.
//
// What is compared. Every event of the log, once, with every row of usage_events: every field
// of the record. Their sums
// by hour and in all. Every other view but those of costs with usage_events, period by period: its sums, and by a checksum over its groups whether they
// are of the same payers, minutes, quarters or reasons; of a period that differs the groups are named. The group's committed offsets with the log's ends. What was
// put aside in the dead letters is accounted for: such a message is expected there and not in the ledger.
//
// The log may bear an event many times, with other figures. Which message counts is the ledger's rule (migrations/clickhouse/README.md): what is
// no guess replaces `expired`; among equals it is the one stored first, so the first of its partition. A row says by its place in the log which
// message it is of; it is compared with that one, and that it may be that one is checked.
//
// What retention removed before the group had committed it is named (KindOffsets, LostToRetention) as long as the group's committed offset lies below the
// log's beginning, that is until the consumer goes on. After that Kafka no longer tells, and the events are on neither side: only the
// consumer's log and its metrics, until it is started anew, do (services/consumer/internal/kafkasource). A group that has committed nothing in a
// partition has lost nothing there, as far as can be told.
//
// While events are flowing. The log is read up to its ends at the start, and the consumer is waited for until it has committed them. Rows
// that come from beyond, or from before what the log still holds, are told apart by their place in the log and counted as outside. The views
// are asked several times: a difference counts if it is the same each time; a figure that moves meanwhile is named as unsettled.
//
// Memory and disk. The log is read once. Each message becomes a record of 67 bytes in one of up to 256 temporary files, chosen by event id so
// that a file holds about 500,000; one that turns out to hold over a million is split. Then each file is compared with the rows of that range of
// ids, which ClickHouse finds by its primary key. So memory is that of one file, a million messages of 88 bytes at most, whatever the log holds.
// Disk: 67 bytes a message. Dead letters are held in memory, at some 50 bytes each.
package reconcile
