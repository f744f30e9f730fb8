-- Stores one fold. Input: one block, columns of block.go in its order. Atomic: the table has no partitions, so that the block is one part.
-- Settings: insert_deduplication_token names the fold; a second block of that name is dropped.
INSERT INTO usage_ledger (@columns) VALUES
