-- The server's clock, by which events are marked as ingested. Output: Unix milliseconds.
SELECT toUnixTimestamp64Milli(now64(3)) AS millis
