-- The read-only user of finance and of people's tools, for real servers: an administrator runs it once, after the migrations.
-- Parameter: finance_password (clickhouse-client --param_finance_password=…). The embedded server gets the same user by its
-- configuration, as it can't create users.
-- output_format_json_quote_decimals: money is exact in JSON only as a string.
-- SELECT covers the whole database because views read with the rights of the reader; readonly = 2 forbids every write.

CREATE USER IF NOT EXISTS finance IDENTIFIED WITH sha256_password BY {finance_password:String}
SETTINGS readonly = 2 READONLY, max_execution_time = 300 MAX 300, output_format_json_quote_decimals = 1;

GRANT SELECT, SHOW ON tollgate.* TO finance;
