-- Fold 0 of the rebuild's table, without which no writer begins; as the migration's.
INSERT INTO usage_ledger_@generation (grain, events, request_id, ingested_at, generation)
SELECT 'fold', 1, generateUUIDv4(), now64(3), @generation
