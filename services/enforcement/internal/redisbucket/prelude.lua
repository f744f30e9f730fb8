-- What every script begins with.
local MAX = 9007199254740991
local fmod, floor, max, min, format, match, call = math.fmod, math.floor, math.max, math.min, string.format, string.match, redis.call

-- The time in ms: Redis's own, or the caller's, who then may be far from it; pad, in ms, keeps what expires longer in that case.
local function clock(given)
  if given ~= '' then return tonumber(given), 3600000 end
  local t = call('TIME')
  return t[1] * 1000 + floor(t[2] / 1000), 0
end

-- Leaves a settled reservation: S while its event is not known to be durable, E afterwards. The metas are kept to emit it again.
local function keep_settled(key, checked_at, now, retention, pad, reserved, check_meta, meta)
  call('SET', key, format('S %d 0 %d %d %d %d %d 0 0 - %d %s%s', checked_at, now + retention, reserved[1], reserved[2], reserved[3], reserved[4],
    #check_meta, check_meta, meta), 'PX', format('%d', retention + pad))
end
