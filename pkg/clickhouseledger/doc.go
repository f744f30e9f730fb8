// Package clickhouseledger is the LEDGER stage's writer, and the only one: it stores usage events in ClickHouse, each event_id once,
// together with the sums that the views read. How that holds is told in migrations/clickhouse/README.md; in short, Store looks up
// what is stored, inserts the rest and the changes of all sums as one block, numbered by a fold row, under a token that only one
// writer who has seen the same state can use, and reads back whether it was that one.
//
// What repeats, and what removes the repeat, if the process, the connection or the server dies
//
//   - before the insert: nothing was stored.
//   - during it, or before its answer: the block is there whole or not at all. Store fails; called again, it looks, and finds all
//     of its events or none.
//   - between ClickHouse's note of the token and the part: the fold's number is used up without a fold. Whoever tries it is told that it
//     was taken, sees nobody's mark, and takes the next number.
//   - after the insert: nothing.
//
// Several writers, in whatever processes, may store the same or other events at once: one gets through, the others look again. A
// writer that slept is refused by the table's constraint `fresh`, one that has looked at a table which a rebuild has replaced by the
// constraint `generation`; both look again.
//
// Rebuild makes the table again from the whole log and swaps it in while writers go on.
//
// It needs a ClickHouse server, or a service whose table has one place that knows all tokens. Store's calls go to one connection, one
// after the other.
//
// When ClickHouse is away or refuses for its own reasons (memory, too many parts, no disk), Store fails and may be repeated. Only an
// event that breaks a constraint of the table is an ErrRefused.
package clickhouseledger
