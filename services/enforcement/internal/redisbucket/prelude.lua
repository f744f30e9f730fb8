-- What every script begins with.
local MAX = 9007199254740991
local floor, max, min, call, format, match, find, sub = math.floor, math.max, math.min, redis.call, string.format, string.match, string.find, string.sub

-- Numbers as bytes: Redis's struct, or the same of it in Lua, of what is used here, for the embedded Redis, which has none.
local packed, unpacked
if rawget(_G, 'struct') then
  packed, unpacked = struct.pack, struct.unpack
else
  packed = function(layout, ...)
    local out, given = {}, {...}
    for width in string.gmatch(layout, '[iI](%d)') do
      local n, bytes = given[#out + 1], ''
      for _ = 1, tonumber(width) do
        local digit = math.fmod(n, 256)
        bytes, n = string.char(digit) .. bytes, (n - digit) / 256
      end
      out[#out + 1] = bytes
    end
    return table.concat(out)
  end
  unpacked = function(layout, text, at)
    local out = {}
    for sign, width in string.gmatch(layout, '([iI])(%d)') do
      local n, negative = 0, sign == 'i' and string.byte(text, at) > 127
      for _ = 1, tonumber(width) do
        local byte = string.byte(text, at)
        n, at = n * 256 + (negative and 255 - byte or byte), at + 1
      end
      out[#out + 1] = negative and -n - 1 or n
    end
    out[#out + 1] = at
    return unpack(out)
  end
end

-- A scope's limits, packed: for each capacity, window in ms and a third number; three limits at least, of which those that aren't there are 1 1 0.
local TRIPLE = '>I7I6i7'
local NUMBERS = '>I7I6i7I7I6i7I7I6i7'
-- 2020-01-01 in ms: packed times begin here, and last for 34 years.
local EPOCH = 1577836800000

-- The time in ms: Redis's own, or the caller's, who then may be far from it; pad, in ms, keeps what expires longer in that case.
local now, pad = tonumber(ARGV[1]), 3600000
if not now then
  local t = call('TIME')
  now, pad = t[1] * 1000 + floor(t[2] / 1000), 0
end

-- A reservation lies in a hash of its shard, as text:
--   H <checked at> <lease end> <known for, after that> <reserved: 4> <drawn: tokens, output> <scopes> <meta>     open
--   S <checked at> <due> <known until> <reserved: 4> 0 0 - <length of the check's meta> <both metas>            settled, its event may not be durable
-- <scopes> are <kind>=<name>, comma separated, - for none; after one of which another shard holds the slot ~<kind>=<name>#<shard>, after one to which others have
-- lent for each +<kind>=<name>#<shard>#<limit>=<amount>/…, a limit named as in a signature, without its capacity.
-- And, once its event is durable, in a key of its own that expires: E, in the form of S with empty metas. Times in ms.
local function settled(checked_at, due, retention, r, t, i, o, check_meta, meta)
  return format('S %s %d %d %s %s %s %s 0 0 - %d %s%s', checked_at, due, now + retention, r, t, i, o, #check_meta, check_meta, meta)
end
