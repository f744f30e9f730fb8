// Package consume is the step from EVENT to LEDGER without its technology: fetch messages, decode them, cut batches, store them,
// put aside what can't be used, commit.
//
// The order within a batch is fixed: rows are stored, then dead letters are acknowledged, then the offsets are committed. What
// repeats, and what removes the repeat, if the process dies
//
//   - before the insert: the messages come again; nothing was stored.
//   - during the insert, or before its answer arrives: the rows may be there. The same batch is tried again, or after a
//     restart one that is cut elsewhere, and the ledger leaves out the events that it has.
//   - between the insert and the dead letters, or between them and the commit: rows and dead letters come again. Rows as above;
//     a dead letter may be in its topic twice, with the same topic, partition and offset headers.
//   - after the commit: nothing.
//
// A commit that fails is not repeated for its own sake: a later one covers it, and a restart begins where the last one stood.
// After a rebalance the same messages may come to two consumers: as after a restart.
//
// When a dependency fails: with ClickHouse or the dead letters' topic away, the loop tries its one batch again, forever, with
// backoff, and fetches nothing more: memory stays bounded by the limits of a batch. A row that the ledger refuses for what it
// says is found by halving the batch, and becomes a dead letter. No message, however bad, holds up the ones behind it.
package consume
