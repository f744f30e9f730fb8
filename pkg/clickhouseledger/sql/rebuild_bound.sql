-- Where a range of the ledger's events ends that begins behind one. Input: after: an event id; most: events in the range. Output: the id of the
-- range's last event; no row if fewer follow. Read along the primary key, so that memory does not grow with the ledger.
SELECT event_id
FROM usage_ledger
WHERE grain = 'event' AND event_id > {after:UUID}
ORDER BY event_id
LIMIT 1 OFFSET {most:UInt64}
