-- Reads all reports, with the time of the node that they lie on.
--
-- KEYS   the reports, a hash
-- Reply  the time in ms, then group and report by turns
local t = redis.call('TIME')
local reply = redis.call('HGETALL', KEYS[1])
table.insert(reply, 1, string.format('%d', t[1] * 1000 + math.floor(t[2] / 1000)))
return reply
