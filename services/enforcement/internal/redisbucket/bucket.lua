-- The arithmetic of pkg/limit/bucket.go, step for step, in Lua's numbers. Prepended to check.lua and settle.lua.
--
-- Exact because every intermediate value is an integer below 2^53, or saturates at MAX = 2^53-1. math.fmod is exact; the % operator
-- is not for large numbers. Numbers become text by %.0f; tostring would round them to 14 digits.
--
-- State of a scope, as text: the time of its last operation in ms, then for each limit
--   <id> <consumed> <credit> <capacity> <fast>
-- id is what it counts (r, t, i, o) and its window in seconds: "t60", "t86400". The unit of credit is 1/window-in-ms of one.
local MAX = 9007199254740991
local fmod, floor, max, min = math.fmod, math.floor, math.max, math.min

local function drained(rate, window, credit, ms)
  local rest, odd = fmod(ms, window), fmod(rate, window)
  local part = rest * odd + credit
  local left = fmod(part, window)
  local tokens = (ms - rest) / window * rate + rest * ((rate - odd) / window) + (part - left) / window
  return min(tokens, MAX), left
end

-- The least time in ms in which need drains. The quotient of doubles is off by less than one; the loops make it exact.
local function wait_for(rate, window, credit, need)
  local odd = fmod(need, rate)
  local w = (need - odd) / rate * window + floor((odd * window - credit) / rate)
  if w >= MAX then return MAX end
  w = max(w, 0)
  while drained(rate, window, credit, w) < need do w = w + 1 end
  while w > 0 and drained(rate, window, credit, w - 1) >= need do w = w - 1 end
  return w
end

-- b is {consumed, credit, capacity, fast}
local function apply(b, rate, window, ms)
  local tokens, credit = drained(rate, window, b[2], ms)
  b[1], b[2] = b[1] - tokens, credit
  if b[1] <= 0 then b[1], b[2] = 0, 0 end
end

local function drain(b, window, ms)
  if b[4] > 0 and b[1] > b[3] then
    local rate = max(b[4], b[3])
    local w = wait_for(rate, window, b[2], b[1] - b[3])
    if ms < w then return apply(b, rate, window, ms) end
    apply(b, rate, window, w)
    ms = ms - w
  end
  b[4] = 0
  apply(b, b[3], window, ms)
end

local function lower(b, capacity)
  local excess = min(b[1], min(b[3] + b[4], MAX)) - capacity
  if b[1] <= capacity then b[4] = 0 else b[4] = max(b[4], excess, 0) end
  b[3] = capacity
end

local function advance(b, capacity, window, ms)
  if capacity < b[3] then
    lower(b, capacity)
    drain(b, window, ms)
  elseif capacity > b[3] then
    drain(b, window, ms)
    lower(b, capacity)
  else
    drain(b, window, ms)
    return false
  end
  return true
end

local function add(b, n)
  if n < 0 and b[1] + n <= 0 then
    b[1], b[2] = 0, 0
  else
    b[1] = min(b[1] + n, MAX)
  end
end

-- Reads a scope's state. at is nil if there is none.
local function parse(text)
  local buckets, at = {}, nil
  if text then
    at = tonumber(string.match(text, '^%d+'))
    for id, consumed, credit, capacity, fast in string.gmatch(text, ' (%S+) (%d+) (%d+) (%d+) (%d+)') do
      buckets[id] = {tonumber(consumed), tonumber(credit), tonumber(capacity), tonumber(fast)}
    end
  end
  return buckets, at
end

-- Brings a scope from its last operation to now and gives each limit (ids, capacities, windows: ARGV from `from` on, four a limit) its
-- bucket. Returns buckets by id, in order, the time of the state, how far it lies ahead of now, and whether a capacity has changed.
local function bring(text, now, from, limits)
  local buckets, at = parse(text)
  at = at or now
  local ms, ordered, changed, current = max(0, now - at), {}, false, {}
  for i = 0, limits - 1 do
    local id, capacity, window = ARGV[from + 4 * i], tonumber(ARGV[from + 4 * i + 2]), tonumber(ARGV[from + 4 * i + 3])
    local b = buckets[id]
    if b then
      if advance(b, capacity, window, ms) then changed = true end
    else
      b = {0, 0, capacity, 0}
      buckets[id] = b
    end
    ordered[i + 1], current[id] = b, true
  end
  for id, b in pairs(buckets) do -- a limit that is lifted for a while keeps its consumption
    if not current[id] then drain(b, floor(tonumber(string.sub(id, 2)) * 1000 + 0.5), ms) end
  end
  return buckets, ordered, at + ms, max(0, at - now), changed
end

-- Writes a scope's state. It expires when it would be full again (never sooner: a fast drain is not counted on), for then it says
-- nothing; pad keeps it longer where time is the caller's. 8e12 ms, 253 years, is what fits a Go duration.
local function store(key, buckets, at, lag, pad)
  local out, ttl = {string.format('%.0f', at)}, 0
  for id, b in pairs(buckets) do
    if b[1] > 0 then
      out[#out + 1] = string.format('%s %.0f %.0f %.0f %.0f', id, b[1], b[2], b[3], b[4])
      ttl = max(ttl, b[1] / b[3] * floor(tonumber(string.sub(id, 2)) * 1000 + 0.5))
    end
  end
  if #out == 1 then
    redis.call('DEL', key)
  else
    redis.call('SET', key, table.concat(out, ' '), 'PX', string.format('%.0f', min(floor(ttl) + 2 + lag + pad, 8000000000000)))
  end
end

local function clock(given)
  if given ~= '' then return tonumber(given), 3600000 end
  local t = redis.call('TIME')
  return t[1] * 1000 + floor(t[2] / 1000), 0
end
