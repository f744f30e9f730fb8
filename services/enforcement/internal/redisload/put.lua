-- Replaces a group's report, if it is still the one that the new one was made from.
--
-- KEYS   the reports, a hash
-- ARGV   1 the group   2 the report as it was read, '' for none   3 the new report   4 how long the new one counts, in ms
-- Reply  1 if it was replaced, 0 if another has been written meanwhile
if (redis.call('HGET', KEYS[1], ARGV[1]) or '') ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[4]) then redis.call('PEXPIRE', KEYS[1], ARGV[4]) end
return 1
