// Package replay sends a recorded trace through the whole path: a check for every REQUEST at its time, a record for every allowed
// one, and an Account of it all that the LEDGER is compared with.
//
// Checks keep the trace's pace, divided by the speed, as long as the system answers in time; the account says by how much it fell
// behind. Records go their own way through a queue, so that a slow record holds back no check. Both run on a bounded number of
// workers. The same trace, seed and number of users give the same requests of the same users in the same order.
package replay
