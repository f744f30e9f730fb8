-- How much has an org used this month, day by day and in all so far?
-- Input:  org: the org; '' is usage without an org
--         today: last day of the count, UTC; the month is its month (default: today)
-- Output: one row a day with usage. requests, total_tokens: of the day; month_requests, month_tokens: from the first of the month to that day.
SELECT
    toDate(u.period) AS day,
    sum(u.requests) AS requests,
    sum(u.total_tokens) AS total_tokens,
    sum(sum(u.requests)) OVER (ORDER BY toDate(u.period)) AS month_requests,
    sum(sum(u.total_tokens)) OVER (ORDER BY toDate(u.period)) AS month_tokens
FROM usage_daily AS u
WHERE u.org_id = {org:String}
  AND u.period >= toDateTime(toStartOfMonth({today:Date}), 'UTC') AND u.period < toDateTime({today:Date} + 1, 'UTC')
GROUP BY day
ORDER BY day
