DELETE FROM org_quotas WHERE org_id = $1
