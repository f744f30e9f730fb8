-- What a request really used stands against the guess that it expired, in whatever order the two arrive.
--
-- Input:   usage_event_rows. Two rows of one event_id may differ: an instance of enforcement that has answered a record while Redis was
--          away may die before Redis knows of it; later the request's lease ends in Redis and another instance emits what was held,
--          outcome expired, under the same event_id.
-- Output:  precedence: rows that are no guess come before those that are, and among each the one first in Kafka (least offset, then
--          least partition) stands. Bit 63 is set for a row that is no guess; 51 bits are left for the offset, 12 for the partition.
-- Rows that were stored before get theirs by a mutation in the background. Parts that it has not reached are not merged with newer ones.

-- +goose NO TRANSACTION
-- +goose Up
ALTER TABLE usage_event_rows MODIFY COLUMN precedence UInt64 MATERIALIZED
    bitOr(if(outcome = 'expired', 0, bitShiftLeft(toUInt64(1), 63)),
          bitAnd(bitNot(bitOr(bitShiftLeft(kafka_offset, 12), toUInt64(kafka_partition))), bitShiftLeft(toUInt64(1), 63) - 1));
ALTER TABLE usage_event_rows MATERIALIZE COLUMN precedence;

-- +goose Down
ALTER TABLE usage_event_rows MODIFY COLUMN precedence UInt64 MATERIALIZED bitNot(bitOr(bitShiftLeft(kafka_offset, 12), toUInt64(kafka_partition)));
ALTER TABLE usage_event_rows MATERIALIZE COLUMN precedence;
