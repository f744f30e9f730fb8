// Package pricebook copies what the LEDGER needs of CONTROL: prices and the time zones of orgs, from quota.changes.v1 into ClickHouse, where
// cost_daily and invoice_lines join them with usage.
//
// Each start reads the topic from its beginning. It is compacted, so it holds the latest of each key, and no place in it is kept: a place in Kafka
// outlives the ClickHouse that it tells of, and an empty one, or one from a backup, would never be filled.
//
// What repeats: at each start everything, and several consumers copy the same. What removes the repeat: the store keeps the highest version of each price and of
// each org, so a repeat, an older message that comes late, or two copiers at once change nothing.
//
// When ClickHouse is away, nothing is fetched and the batch is tried until it is back. When Kafka is away, or the topic is not there yet, the copier
// waits; the ledger is not held up by either. A message that can't be used is logged with its place and counted, and passed over: what it says of a
// price or an org is then missing until the next change of it.
package pricebook
