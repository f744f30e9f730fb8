-- Every model that has a price, and those that only have events.
SELECT n.model
FROM (SELECT p.model FROM prices AS p UNION SELECT e.model FROM price_events AS e) AS n
ORDER BY n.model
