-- Input: ids, a list of request ids. Output: of each event of theirs its request's id, tokens, outcome and a refusal's reason.
SELECT request_id, input_tokens, output_tokens, toString(outcome), if(was_rate_limited, reason, '')
FROM usage_events
WHERE request_id IN @ids
