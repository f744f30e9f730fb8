-- The price book after one event. $4, $5 and $6 are decimal texts.
INSERT INTO prices (model, valid_from, currency, input_per_million, cached_input_per_million, output_per_million, version, actor, reason, updated_at)
VALUES ($1, $2, $3, $4::text::numeric, $5::text::numeric, $6::text::numeric, $7, $8, $9, $10)
ON CONFLICT (model, valid_from) DO UPDATE SET
    currency = excluded.currency, input_per_million = excluded.input_per_million, cached_input_per_million = excluded.cached_input_per_million,
    output_per_million = excluded.output_per_million, version = excluded.version, actor = excluded.actor, reason = excluded.reason,
    updated_at = excluded.updated_at
