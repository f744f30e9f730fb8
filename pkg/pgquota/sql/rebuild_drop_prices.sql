DELETE FROM prices WHERE model = $1
