-- How many hash slots orgs are spread over; one without a row over one. $1 org_ids.
SELECT p.org_id, p.shards
FROM org_quotas AS p
WHERE p.org_id = ANY($1::text[])
