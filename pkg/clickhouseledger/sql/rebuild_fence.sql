-- Gives the rebuild's table, while it is empty, the constraint that refuses writers who have looked at another table.
ALTER TABLE usage_ledger_@generation DROP CONSTRAINT generation, ADD CONSTRAINT generation CHECK generation = @generation
