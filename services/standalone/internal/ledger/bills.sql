-- Input: keys, a list of api key ids. Output: for each of their users, and for all together at the end, admitted and refused requests, tokens, and the
-- exact cost with its currency ('' while there is no price, or none for some tokens).
WITH
    usage AS
    (
        SELECT arrayJoin([user_id, 'all']) AS who, sum(requests) AS admitted, sum(rejected_requests) AS refused,
            sum(input_tokens) AS tokens_in, sum(output_tokens) AS tokens_out
        FROM usage_hourly
        WHERE api_key_id IN @keys
        GROUP BY who
    ),
    priced AS
    (
        SELECT who, if(max(unpriced) > 0, '', arrayStringConcat(arraySort(groupArray(concat(toString(amount), ' ', currency))), ' + ')) AS cost
        FROM
        (
            SELECT arrayJoin([user_id, 'all']) AS who, currency, max(unpriced) AS unpriced, sum(cost) AS amount
            FROM cost_daily
            WHERE api_key_id IN @keys AND (input_tokens != 0 OR output_tokens != 0)
            GROUP BY who, currency
        )
        GROUP BY who
    )
SELECT usage.who, toInt64(admitted), toInt64(refused), tokens_in, tokens_out, ifNull(priced.cost, '')
FROM usage LEFT JOIN priced ON usage.who = priced.who
ORDER BY usage.who = 'all', usage.who
