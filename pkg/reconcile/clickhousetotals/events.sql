-- Events of the ledger, each once, for a comparison with the log.
-- Input:  from_id, to_id: a range of event ids in ClickHouse's order of UUIDs (lower half first), to_id not in it; bounded (0: no upper end);
--         since: Unix milliseconds (0: all); starts: per partition, the first offset of the log that is compared (with since only): a row
--         is wanted if it is not older than since, or if it lies there or behind.
-- Output: one row an event. at: Unix milliseconds of its timestamp. Tokens are counts.
SELECT
    event_id, kafka_partition, toInt64(kafka_offset) AS kafka_offset, toUnixTimestamp64Milli(timestamp) AS at,
    input_tokens, output_tokens, cached_input_tokens,
    user_id, api_key_id, org_id, tier, requested_model, model, reason, scope, outcome, reservation, region, instance,
    request_id, corrects_event_id, reserved_tokens, latency_ms, schema_version, estimated, was_rate_limited
FROM usage_events
WHERE event_id >= {from_id:UUID} AND ({bounded:UInt8} = 0 OR event_id < {to_id:UUID})
  AND ({since:Int64} = 0 OR timestamp >= fromUnixTimestamp64Milli({since:Int64}) OR toInt64(kafka_offset) >= {starts:Array(Int64)}[kafka_partition + 1])
