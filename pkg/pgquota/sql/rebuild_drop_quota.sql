DELETE FROM quotas WHERE subject = $1
