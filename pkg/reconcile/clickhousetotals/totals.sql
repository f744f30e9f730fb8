-- Sums up the ledger. Output: one row; counts and tokens over distinct events; the exclusive or of the event ids, upper and lower half,
-- as 64-bit integers of their big-endian bytes.
SELECT
    toInt64(count()) AS events,
    toInt64(countIf(NOT was_rate_limited AND outcome != 'adjustment')) AS requests,
    toInt64(countIf(was_rate_limited)) AS rejected_requests,
    sum(input_tokens) AS input,
    sum(output_tokens) AS output,
    sum(cached_input_tokens) AS cached,
    groupBitXor(reinterpretAsUInt64(reverse(substring(UUIDStringToNum(toString(event_id)), 1, 8)))) AS upper_ids,
    groupBitXor(reinterpretAsUInt64(reverse(substring(UUIDStringToNum(toString(event_id)), 9, 8)))) AS lower_ids
FROM usage_events
