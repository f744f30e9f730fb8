-- Notes that an instance is alive, forgets those that have been silent for too long, and tells the rest.
--
-- KEYS   the instances: "<name>" or "<name> <address>", by when each is believed alive
-- ARGV   1 the instance's name   2 its member, that is the name and its address if it has one   3 how long it is believed alive, in ms
-- Reply  the members that are alive, this one included
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
redis.call('ZADD', KEYS[1], string.format('%d', now + tonumber(ARGV[3])), ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%d', now))
redis.call('PEXPIRE', KEYS[1], ARGV[3])
local members = redis.call('ZRANGE', KEYS[1], 0, -1)
local live = {}
for _, m in ipairs(members) do
  if m ~= ARGV[2] and string.match(m, '^%S+') == ARGV[1] then -- it had another address, or none yet
    redis.call('ZREM', KEYS[1], m)
  else
    live[#live + 1] = m
  end
end
return live
