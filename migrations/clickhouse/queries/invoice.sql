-- What does an org owe for a month, line by line?
-- Input:  org: the org
--         month: the month, in the org's own time zone (default: this month)
-- Output: one row a line: model and the prices that held, by tokens. Prices are for a million tokens; amount is rounded once, half to even, to the cent.
--         total: of all lines of that currency. unpriced: no price covers the line, amount and prices are null, and the total lacks it.
SELECT
    model, currency, unpriced, input_tokens, cached_input_tokens, output_tokens, input_per_million, cached_input_per_million, output_per_million, amount,
    sum(amount) OVER (PARTITION BY currency) AS total
FROM invoice_lines
WHERE org_id = {org:String} AND month = toStartOfMonth({month:Date})
ORDER BY currency, model, input_per_million, output_per_million
