// Package chaos crashes Tollgate under load and proves that nothing was lost and nothing counted twice.
//
// Two instances of enforcement, two consumers and quota run as processes of their own on a real Kafka, a real Redis with an append-only
// file, PostgreSQL and ClickHouse. Callers check and record, each record sent again until it is answered, to whichever instance is next;
// what was answered is written down. Meanwhile a seeded schedule ends processes with SIGKILL at random moments of the load, stops
// others in their tracks for seconds, and lets the disk of the spool run full while Kafka is away. While all that goes on, the views
// are watched: an event that shows twice, or a view that runs ahead of the events or stays behind them, is a failure at any moment.
//
// In the end every answered record must be in usage_events once with what it used, every view must agree with usage_events group by
// group, and log and ledger must hold the same events.
package chaos
