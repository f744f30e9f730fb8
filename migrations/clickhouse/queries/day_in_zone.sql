-- What did an org use on a day in a time zone, hour by hour?
-- Input:  org: the org; '' is usage without an org
--         day: the day, as the org's calendar has it (default: today)
--         zone: IANA name of its time zone, such as Europe/Berlin (default: UTC)
-- Output: one row an hour with usage. hour: when it begins, in that zone with its offset from UTC: where clocks change, a day has 23 or 25 hours
--         and one of them may be there twice. Tokens are counts.
SELECT
    formatDateTime(toStartOfHour(toTimeZone(u.period, {zone:String})), '%Y-%m-%d %H:%i %z', {zone:String}) AS hour,
    sum(u.requests) AS requests,
    sum(u.rejected_requests) AS rejected_requests,
    accurateCast(sum(toInt128(u.input_tokens)), 'Int64') AS input_tokens,
    accurateCast(sum(toInt128(u.output_tokens)), 'Int64') AS output_tokens,
    accurateCast(sum(toInt128(u.total_tokens)), 'Int64') AS total_tokens
FROM usage_minutely AS u
WHERE u.org_id = {org:String}
  AND u.period >= toDateTime(toString({day:Date}), {zone:String}) AND u.period < toDateTime(toString({day:Date} + 1), {zone:String})
GROUP BY hour
ORDER BY min(u.period)
