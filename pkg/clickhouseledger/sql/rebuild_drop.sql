-- Drops a table of a rebuild, of whatever size.
DROP TABLE IF EXISTS usage_ledger_@generation SYNC SETTINGS max_table_size_to_drop = 0
