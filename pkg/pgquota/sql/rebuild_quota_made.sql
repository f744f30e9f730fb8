UPDATE quotas SET created_at = $2 WHERE subject = $1
