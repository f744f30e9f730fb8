-- What became of one request?
-- Input:  request_id: the request
-- Output: its events in the order of the log: a refused try and the usage of a later one may share the id. timestamp: of the check, UTC; tokens are
--         counts; corrects_event_id: null but for a correction; kafka_partition and kafka_offset: the event's place in the log.
SELECT
    timestamp, outcome, reason, scope, org_id, user_id, api_key_id, tier, requested_model, model, input_tokens, cached_input_tokens, output_tokens,
    reserved_tokens, latency_ms, reservation, estimated, event_id,
    nullIf(corrects_event_id, toUUID('00000000-0000-0000-0000-000000000000')) AS corrects_event_id, kafka_partition, kafka_offset, ingested_at
FROM usage_events
WHERE request_id = {request_id:UUID}
ORDER BY kafka_offset, kafka_partition
