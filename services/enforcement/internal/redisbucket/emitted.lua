-- Notes that a settled reservation's event is durable, and drops the metas that were kept to emit it again.
--
-- KEYS   the reservation
-- Reply  1 noted, 0 there is no settled reservation
local text = redis.call('GET', KEYS[1])
if not text then return 0 end
local head = string.match(text, '^S( %d+ %d+ %d+ %d+ %d+ %d+ %d+ %-) ')
if not head then return 0 end
redis.call('SET', KEYS[1], 'E' .. head .. ' 0 ', 'KEEPTTL')
return 1
