-- What was corrected?
-- Input:  from: first day, UTC (default: this month)
--         to: last day, UTC (default: today)
--         org: only of this org; all if '' (default: '')
-- Output: one row an adjustment, oldest first; it lies in the period of its own timestamp. Tokens are what it adds, or takes back if negative.
--         corrects_event_id: the event that is corrected.
SELECT
    timestamp, org_id, user_id, api_key_id, model, input_tokens, cached_input_tokens, output_tokens, corrects_event_id, request_id, event_id, ingested_at
FROM usage_events
WHERE outcome = 'adjustment'
  AND timestamp >= toDateTime64({from:Date}, 3, 'UTC') AND timestamp < toDateTime64({to:Date} + 1, 3, 'UTC')
  AND ({org:String} = '' OR org_id = {org:String})
ORDER BY timestamp, event_id
