-- What every script begins with.
local MAX = 9007199254740991
local floor, max, min, call, format, match, find, sub = math.floor, math.max, math.min, redis.call, string.format, string.match, string.find, string.sub

-- The time in ms: Redis's own, or the caller's, who then may be far from it; pad, in ms, keeps what expires longer in that case.
local now, pad = tonumber(ARGV[1]), 3600000
if not now then
  local t = call('TIME')
  now, pad = t[1] * 1000 + floor(t[2] / 1000), 0
end

-- A reservation lies in a hash of its shard, as text:
--   H <checked at> <lease end> <known for, after that> <reserved: 4> <drawn: tokens, output> <scopes> <meta>     open
--   S <checked at> <due> <known until> <reserved: 4> 0 0 - <length of the check's meta> <both metas>            settled, its event may not be durable
-- and, once its event is durable, in a key of its own that expires: E, in the form of S with empty metas. Times in ms.
local function settled(checked_at, due, retention, r, t, i, o, check_meta, meta)
  return format('S %s %d %d %s %s %s %s 0 0 - %d %s%s', checked_at, due, now + retention, r, t, i, o, #check_meta, check_meta, meta)
end
