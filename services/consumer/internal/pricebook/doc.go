// Package pricebook copies what the LEDGER needs of CONTROL: prices and the time zones of orgs, from quota.changes.v1 into ClickHouse, where
// cost_daily and invoice_lines join them with usage.
//
// What repeats at each crash point: the messages that were stored and not committed. What removes the repeat: the store keeps the highest version
// of each price and of each org, so a repeat, an older message that comes late, or two members of the group that work at once change nothing.
// A new group reads the compacted topic from its beginning, and so fills an empty ClickHouse.
//
// When ClickHouse is away, nothing is fetched and the batch is tried until it is back. When Kafka is away, or the topic is not there yet, the copier
// waits; the ledger is not held up by either. A message that can't be used is logged with its place and counted, and passed over: what it says of a
// price or an org is then missing until the next change of it.
package pricebook
