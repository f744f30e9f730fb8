-- The read-only user of finance and of people's tools, for real servers: an administrator runs it after the migrations, and again after an upgrade.
-- Parameter: finance_password (clickhouse-client --param_finance_password=…). The embedded server gets the same user by its
-- configuration (pkg/embedded/clickhouse/users.xml.tmpl), as it can't create users; a test compares the two.
-- Exactly the views, and nothing below them: views read with the rights of their definer, the consumer's user (00004, 00005). readonly = 2 forbids every write,
-- and can't be changed by the user. A query has 300 s, 2 GB and 4 threads at most, all of the user's at once 20 and 4 GB; 0, which would mean no limit, and
-- what is less are refused (MIN). Change the numbers here to what your server can spare.
-- output_format_json_quote_decimals: money is exact in JSON only as a string.

CREATE USER IF NOT EXISTS finance IDENTIFIED WITH sha256_password BY {finance_password:String}
SETTINGS readonly = 2 READONLY;

-- Apart, so that an account of an older version gets them, too.
ALTER USER finance
SETTINGS readonly = 2 READONLY, max_execution_time = 300 MIN 1 MAX 300, max_memory_usage = 2000000000 MIN 1 MAX 2000000000,
    max_memory_usage_for_user = 4000000000 READONLY, max_threads = 4 MIN 1 MAX 4, max_concurrent_queries_for_user = 20 READONLY,
    output_format_json_quote_decimals = 1;

REVOKE ALL ON *.* FROM finance;

GRANT SELECT ON tollgate.usage_events TO finance;
GRANT SELECT ON tollgate.usage_minutely TO finance;
GRANT SELECT ON tollgate.usage_quarterly TO finance;
GRANT SELECT ON tollgate.usage_hourly TO finance;
GRANT SELECT ON tollgate.usage_daily TO finance;
GRANT SELECT ON tollgate.rejections_hourly TO finance;
GRANT SELECT ON tollgate.cost_daily TO finance;
GRANT SELECT ON tollgate.invoice_lines TO finance;
GRANT SELECT ON tollgate.prices TO finance;
GRANT SELECT ON tollgate.org_zones TO finance;
GRANT SELECT ON tollgate.priced_daily TO finance;
