-- How much has an org used this month, day by day and in all so far?
-- Input:  org: the org; '' is usage without an org
--         today: last day of the count, as the org's calendar has it; the month is its month (default: today)
-- Output: one row a day with usage, in the org's own time zone, as invoices have it (UTC if it has named none). requests, total_tokens: of the day;
--         month_requests, month_tokens: from the first of the month to that day.
WITH
    (SELECT if(count() = 0 OR any(time_zone) = '', 'UTC', any(time_zone)) FROM org_zones WHERE org_id = {org:String}) AS zone
SELECT
    toDate(substring(toString(u.period, zone), 1, 10)) AS day,
    sum(u.requests) AS requests,
    accurateCast(sum(toInt128(u.total_tokens)), 'Int64') AS total_tokens,
    sum(requests) OVER (ORDER BY day) AS month_requests,
    accurateCast(sum(toInt128(total_tokens)) OVER (ORDER BY day), 'Int64') AS month_tokens
FROM usage_quarterly AS u
WHERE u.org_id = {org:String}
  AND u.period >= toDateTime(toStartOfMonth({today:Date}) - 1, 'UTC') AND u.period < toDateTime({today:Date} + 2, 'UTC')
  AND day >= toStartOfMonth({today:Date}) AND day <= {today:Date}
GROUP BY day
ORDER BY day
