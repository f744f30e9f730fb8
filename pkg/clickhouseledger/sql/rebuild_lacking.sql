-- What the rebuild's table lacks of a range of the ledger's events. @generation: the rebuild's. Input: after, to: event ids, the range lies behind the
-- first and ends with the second, in ClickHouse's order of UUIDs; until: Unix milliseconds, what was stored later is left out.
-- Output: lacking: how many events; example: the id of one, nil if there is none.
-- Settings: the sets are not held against the primary key, which the range has been already.
-- Memory: two sets of ids of the range of the ledger, however many the rebuild's table holds between them.
SELECT toInt64(count()) AS lacking, any(event_id) AS example
FROM
(
    SELECT DISTINCT event_id
    FROM usage_ledger
    WHERE grain = 'event' AND event_id > {after:UUID} AND event_id <= {to:UUID} AND ingested_at <= fromUnixTimestamp64Milli({until:Int64})
        AND event_id NOT IN
        (
            SELECT event_id
            FROM usage_ledger_@generation
            WHERE grain = 'event' AND event_id > {after:UUID} AND event_id <= {to:UUID}
                AND event_id IN (SELECT event_id FROM usage_ledger WHERE grain = 'event' AND event_id > {after:UUID} AND event_id <= {to:UUID})
        )
)
SETTINGS use_index_for_in_with_subqueries = 0
