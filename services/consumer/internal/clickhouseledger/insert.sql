-- Stores one block of usage events. Input: one row an event, columns in this order. Atomic: the table has no partitions, so the block
-- is one part. Setting insert_deduplication_token: a digest of the rows; a block with a known one is dropped.
INSERT INTO usage_event_rows
    (event_id, schema_version, user_id, api_key_id, org_id, tier, request_id, requested_model, model, input_tokens, output_tokens,
     cached_input_tokens, reserved_tokens, latency_ms, timestamp, was_rate_limited, reason, scope, outcome, reservation, estimated,
     region, instance, kafka_topic, kafka_partition, kafka_offset)
