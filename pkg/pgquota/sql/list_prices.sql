-- Prices by model, the earliest first, with whether each has begun. $1 model, '' for all. Amounts are decimal texts.
SELECT p.model, p.valid_from, p.currency, p.input_per_million::text, p.cached_input_per_million::text, p.output_per_million::text,
       p.version, p.actor, p.reason, p.updated_at, p.valid_from <= clock_timestamp()
FROM prices AS p
WHERE $1::text = '' OR p.model = $1
ORDER BY p.model, p.valid_from
