-- Swaps the rebuild's table and the live one. Atomic: every statement sees one or the other.
EXCHANGE TABLES usage_ledger_@generation AND usage_ledger
