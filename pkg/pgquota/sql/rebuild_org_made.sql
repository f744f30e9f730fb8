UPDATE org_quotas SET created_at = $2 WHERE org_id = $1
