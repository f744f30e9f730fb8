-- A rebuild's own table, empty: columns, indices, engine, keys, settings and constraints of the live one. @generation: the rebuild's, a number.
CREATE TABLE usage_ledger_@generation AS usage_ledger
