UPDATE tiers SET created_at = $2 WHERE tier = $1
