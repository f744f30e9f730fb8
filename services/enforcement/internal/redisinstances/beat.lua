-- Notes that an instance is alive, forgets those that have been silent for too long, and counts the rest.
--
-- KEYS   the instances
-- ARGV   1 the instance   2 how long it is believed alive, in ms
-- Reply  how many are alive, this one included
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
redis.call('ZADD', KEYS[1], string.format('%d', now + tonumber(ARGV[2])), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%d', now))
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return redis.call('ZCARD', KEYS[1])
