// Package boltspool is where the EVENT stage keeps usage events while Kafka is away: a queue in one file (bbolt), in the order in which the
// events came, and beside it the quarantine, for what Kafka refuses for good.
//
// Append returns when the event is fsynced. Whoever waits meanwhile shares the next commit, so a commit (two fsyncs) serves many.
//
// # When the disk fails
//
//   - full, be it Options.MaxBytes or the disk: ErrFull, at once, and nothing that was kept is lost. Taking out goes on, for it needs no new
//     room in the file; so the spool empties, and takes events again, once Kafka is back. After a failed write none is tried for a second.
//   - any other failed write: ErrFull as well, with its cause; the spool takes no more for now. It may be in the file all the same: whoever repeats it
//     sends the same event_id.
//   - the directory can't be written, or another process uses it: Open says so.
//   - the file is damaged: Open reads all of it and gives ErrDamaged. The file is left as it is; bbolt's own command can look into it (bbolt
//     surgery). Moved away, it is replaced by an empty one. Damage within an event's own text is not found: nothing sums it up.
//
// # What a crash costs
//
// Nothing that Append has answered: bbolt never writes over what the last commit needs, and goes back to that commit when it finds a
// torn one. An event may have gone to Kafka and not have been taken out yet: it goes again, with the same event_id, which removes it
// in the ledger.
//
// MaxBytes bounds the events, quarantine included; the file is up to half as large again and 16 MiB, and never shrinks: its room is used again.
package boltspool
