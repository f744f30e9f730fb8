-- Tables that rebuilds have left or are filling. @idle: seconds. Output: generation; idle: neither made nor written to for so
-- long, so that nobody is filling it.
SELECT toUInt64(extract(t.name, '[0-9]+$')) AS generation,
    greatest(t.metadata_modification_time, p.written) < now() - INTERVAL @idle SECOND AS idle
FROM system.tables AS t
LEFT JOIN
(
    SELECT table, max(modification_time) AS written
    FROM system.parts
    WHERE database = currentDatabase()
    GROUP BY table
) AS p ON p.table = t.name
WHERE t.database = currentDatabase() AND match(t.name, '^usage_ledger_[0-9]+$')
ORDER BY generation
