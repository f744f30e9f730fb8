-- What did each model cost?
-- Input:  from: first day, in each org's own time zone (default: this month)
--         to: last day (default: today)
--         org: only of this org; all if '' (default: '')
-- Output: one row a model and currency, dearest first. Tokens are counts. cost: exact, with 18 decimals; of usage that no price covers it is null, the
--         currency '', and unpriced true. Amounts to be paid are rounded: see invoice.
SELECT
    model, currency, unpriced,
    accurateCast(sum(toInt128(c.input_tokens)), 'Int64') AS input_tokens,
    accurateCast(sum(toInt128(c.cached_input_tokens)), 'Int64') AS cached_input_tokens,
    accurateCast(sum(toInt128(c.output_tokens)), 'Int64') AS output_tokens,
    sum(c.cost) AS cost
FROM cost_daily AS c
WHERE c.day >= {from:Date} AND c.day <= {to:Date} AND ({org:String} = '' OR c.org_id = {org:String})
GROUP BY model, currency, unpriced
ORDER BY cost DESC NULLS LAST, model, currency
