-- How many projections there are to look at, about.
SELECT (SELECT count(*) FROM quotas) + (SELECT count(*) FROM org_quotas) + (SELECT count(*) FROM tiers) + (SELECT count(DISTINCT model) FROM prices)
