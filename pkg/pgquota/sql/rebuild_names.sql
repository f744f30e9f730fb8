-- Names that have events or a projection, those after $1 in their order. $2 how many at most.
SELECT n.name
FROM (
    (SELECT DISTINCT e.subject AS name FROM quota_events AS e WHERE e.subject > $1::text ORDER BY e.subject LIMIT $2)
    UNION
    (SELECT q.subject FROM quotas AS q WHERE q.subject > $1::text ORDER BY q.subject LIMIT $2)
    UNION
    (SELECT 'api_key:' || k.key_id FROM api_keys AS k WHERE $1::text COLLATE "C" < 'api_key;' AND k.key_id > CASE WHEN $1 LIKE 'api\_key:%' THEN substr($1, 9) ELSE '' END COLLATE "C" ORDER BY k.key_id LIMIT $2)
    UNION
    (SELECT 'org:' || p.org_id FROM org_quotas AS p WHERE $1::text COLLATE "C" < 'org;' AND p.org_id > CASE WHEN $1 LIKE 'org:%' THEN substr($1, 5) ELSE '' END COLLATE "C" ORDER BY p.org_id LIMIT $2)
) AS n
ORDER BY n.name COLLATE "C"
LIMIT $2
