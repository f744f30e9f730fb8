-- Which of some events are stored. Input: external table ids (id UUID). Output: a row for each stored one; guess: it is expired.
SELECT event_id, guess
FROM usage_ledger
WHERE grain = 'event' AND event_id IN (SELECT id FROM ids)
GROUP BY event_id, guess
HAVING sum(events) > 0
