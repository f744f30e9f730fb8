-- What every script begins with.
local MAX = 9007199254740991
local fmod, floor, max, min, call = math.fmod, math.floor, math.max, math.min, redis.call
local format, match, find, sub = string.format, string.match, string.find, string.sub

-- The time in ms: Redis's own, or the caller's, who then may be far from it; pad, in ms, keeps what expires longer in that case.
local now, pad = tonumber(ARGV[1]), 3600000
if not now then
  local t = call('TIME')
  now, pad = t[1] * 1000 + floor(t[2] / 1000), 0
end

-- Has Due find a reservation at a time in ms: notes its member in the list of the next whole 5 seconds, and the list in the index. Nothing is
-- ever taken off a list but by due.lua, which drops what has become due at another time meanwhile.
local function note_due(index, at, member)
  local slot = floor((at + 4999) / 5000)
  if call('RPUSH', index .. ':' .. slot, member) == 1 then call('ZADD', index, slot, slot) end
end

-- Leaves a settled reservation: S while its event is not known to be durable, E afterwards. The metas are kept to emit it again.
local function keep_settled(key, checked_at, due, retention, reserved, check_meta, meta)
  call('SET', key, format('S %d %d %d %d %d %d %d 0 0 - %d %s%s', checked_at, due, now + retention, reserved[1], reserved[2], reserved[3], reserved[4],
    #check_meta, check_meta, meta), 'PX', format('%d', retention + pad))
end
