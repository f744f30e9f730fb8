-- Compares a view that sums up by period with the events themselves.
-- Input:  {view} and {start}, the function that gives the start of its period; both from a fixed list.
-- Output: one row, how many groups differ: present in one only, or with another figure.
SELECT count() FROM
(
    SELECT 1 FROM
    (
        SELECT toDateTime(period, 'UTC') AS p, org_id, user_id, api_key_id, tier, model, requests, rejected_requests,
            input_tokens, output_tokens, cached_input_tokens, toInt64(1) AS side
        FROM {view}
        UNION ALL
        SELECT toDateTime({start}(timestamp), 'UTC') AS p, org_id, user_id, api_key_id, tier, model,
            countIf(NOT was_rate_limited AND outcome != 'adjustment'), countIf(was_rate_limited),
            sum(input_tokens), sum(output_tokens), sum(cached_input_tokens), toInt64(-1)
        FROM usage_events
        GROUP BY p, org_id, user_id, api_key_id, tier, model
    )
    GROUP BY p, org_id, user_id, api_key_id, tier, model, requests, rejected_requests, input_tokens, output_tokens, cached_input_tokens
    HAVING sum(side) != 0
)
