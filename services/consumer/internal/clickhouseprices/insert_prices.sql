-- Stores changes of the price book. Input: one row a change, columns in this order; amounts are decimals of the currency for a million tokens.
-- A repeat or an older version changes nothing: the highest version of (model, valid_from) stands.
INSERT INTO price_rows
    (model, valid_from, currency, input_per_million, cached_input_per_million, output_per_million, version, changed_at, actor)
