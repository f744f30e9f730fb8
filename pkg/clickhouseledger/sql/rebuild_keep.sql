-- Puts the replaced table where no later rebuild takes it for a leftover.
RENAME TABLE usage_ledger_@generation TO usage_ledger_kept_@generation
