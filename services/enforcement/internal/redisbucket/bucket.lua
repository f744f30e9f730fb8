-- The arithmetic of pkg/limit/bucket.go, step for step, in Lua's numbers. Prepended, after prelude.lua, to the scripts that read or change
-- buckets.
--
-- Exact because every intermediate value is an integer below 2^53, or saturates at MAX = 2^53-1. math.fmod is exact; the % operator
-- is not for large numbers. Numbers become text by %d; tostring would round them to 14 digits.
--
-- State of a scope, as text:  <id>:<capacity>,…|<time of the last operation, ms> <consumed> <credit> …[|<fast> …][;<lease end, s>:<how many>,…]
-- id is what is counted (r, t, i, o) and the window in seconds: "t60", "t86400". The unit of credit is 1/window-in-ms of one. The part
-- before the first bar is the signature. Almost always it equals the one that the caller gives, and no fast drain is going on: then nothing
-- but the numbers has to be read, and the slow path below is not even compiled into closures. Leases have no owner here: a reservation
-- knows when its own ends.
local function drained(rate, window, credit, ms)
  local all = rate * ms + credit
  if all <= MAX then
    local left = all % window -- exact below 2^53
    return (all - left) / window, left
  end
  local rest, odd = fmod(ms, window), fmod(rate, window)
  local part = rest * odd + credit
  local left = fmod(part, window)
  return min((ms - rest) / window * rate + rest * ((rate - odd) / window) + (part - left) / window, MAX), left
end

-- Reads a state whose signature is another one or that drains fast, lets ms pass, and takes on the limits of ARGV, three values each from
-- `at` on; if keep, what exists keeps its capacity. A limit that is lifted for a while keeps its consumption: such entries come after the given ones.
-- Returns consumed and credit in turn, the fast drains or nil, the signature, whether a capacity has changed, and all entries.
local function slowly(text, sig, ms, limits, at, keep)
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
  local function apply(b, rate, passed)
    local tokens, credit = drained(rate, b.window, b.credit, passed)
    b.consumed, b.credit = b.consumed - tokens, credit
    if b.consumed <= 0 then b.consumed, b.credit = 0, 0 end
  end
  local function drain(b)
    local left = ms
    if b.fast > 0 and b.consumed > b.capacity then
      local rate = max(b.fast, b.capacity)
      local w = wait_for(rate, b.window, b.credit, b.consumed - b.capacity)
      if ms < w then return apply(b, rate, ms) end
      apply(b, rate, w)
      left = ms - w
    end
    b.fast = 0
    apply(b, b.capacity, left)
  end
  local function list(from)
    local out = {}
    for digits in string.gmatch(from, '%d+') do out[#out + 1] = tonumber(digits) end
    return out
  end

  local old, numbers, fasts = match(text, '^([^|]*)|%d+([^|]*)|?(.*)$')
  numbers, fasts = list(numbers), list(fasts)
  local buckets, order = {}, {}
  for id, capacity in string.gmatch(old, '([^:,]+):(%d+)') do
    local k = #order + 1
    local b = {id = id, consumed = numbers[2 * k - 1], credit = numbers[2 * k], capacity = tonumber(capacity), fast = fasts[k] or 0,
      window = floor(tonumber(string.sub(id, 2)) * 1000 + 0.5)}
    buckets[id], order[k] = b, b
  end
  local values, changed, draining, current, entries, i = {}, false, {}, {}, {}, 0
  for id in string.gmatch(sig, '([^:,]+):') do
    local capacity, b = tonumber(ARGV[at + 3 * i]), buckets[id]
    if not b or b.consumed == 0 then -- an empty bucket says nothing, not even of its capacity
      b = {id = id, consumed = 0, credit = 0, fast = 0, capacity = capacity, window = tonumber(ARGV[at + 3 * i + 1])}
    else
      drain(b)
      if capacity ~= b.capacity and (not keep or b.consumed == 0) then
        local excess = min(b.consumed, min(b.capacity + b.fast, MAX)) - capacity
        if b.consumed <= capacity then b.fast = 0 else b.fast = max(b.fast, excess, 0) end
        b.capacity, changed = capacity, true
      end
    end
    current[id], i = true, i + 1
    entries[i] = b
    values[2 * i - 1], values[2 * i], draining[i] = b.consumed, b.credit, b.fast
  end
  for _, b in ipairs(order) do
    if not current[b.id] then
      drain(b)
      if b.consumed > 0 then
        i = i + 1
        entries[i], values[2 * i - 1], values[2 * i], draining[i] = b, b.consumed, b.credit, b.fast
      end
    end
  end
  local ids = {}
  for k, b in ipairs(entries) do ids[k] = format('%s:%d', b.id, b.capacity) end
  if max(0, unpack(draining)) == 0 then draining = nil end
  return values, draining, table.concat(ids, ','), changed, entries
end

-- Brings a scope's state to now. scope is {limits = how many, sig = of ARGV, at = where in ARGV they are}; it gets values, draining, entries,
-- changed, time (of the state), lag (how far that lies ahead of now) and leases.
local function bring(scope, text)
  local limits, sig, from = scope.limits, scope.sig, #scope.sig + 1
  local values, head = {}, text
  scope.time, scope.lag, scope.values = now, 0, values
  if text then
    local semi = find(text, ';', 1, true)
    if semi then head, scope.leases = sub(text, 1, semi - 1), sub(text, semi + 1) end
  end
  if limits == 0 then
    scope.head = head -- what other limits left there stays as it is
    return
  end
  if not head or head == '' then
    for i = 1, 2 * limits do values[i] = 0 end
    return
  end
  local same = sub(head, 1, from) == sig .. '|' and not find(head, '|', from + 1, true)
  local ms = now - tonumber(match(head, '%d+', same and from + 1 or find(head, '|', 1, true)))
  if ms < 0 then scope.time, scope.lag, ms = now - ms, -ms, 0 end
  if not same then
    scope.values, scope.draining, scope.sig, scope.changed, scope.entries = slowly(head, sig, ms, limits, scope.at, scope.keep)
    return
  end
  values = {match(head, string.rep(' (%d+) (%d+)', limits), from)}
  for i = 1, limits do
    local consumed, at = tonumber(values[2 * i - 1]), scope.at + 3 * i
    if consumed > 0 then
      local tokens, credit = drained(tonumber(ARGV[at - 3]), tonumber(ARGV[at - 2]), tonumber(values[2 * i]), ms)
      consumed = consumed - tokens
      if consumed <= 0 then consumed, credit = 0, 0 end
      values[2 * i - 1], values[2 * i] = consumed, credit
    else
      values[2 * i - 1], values[2 * i] = 0, 0
    end
  end
  scope.values = values
end

-- Charges a limit, or gives back if n is negative.
local function add(values, i, n)
  local consumed = values[2 * i - 1] + n
  if n < 0 and consumed <= 0 then
    values[2 * i - 1], values[2 * i] = 0, 0
  else
    values[2 * i - 1] = min(consumed, MAX)
  end
end

-- Counts a scope's open leases. With drop or take (ends of leases, in s) it also rewrites them: one that ends at drop less, one at take more, none
-- that has ended.
local function leases(scope, drop, take)
  local out, n, open, last = {}, 0, 0, 0
  if scope.leases then
    for till, count in string.gmatch(scope.leases, '(%d+):(%d+)') do
      till, count = tonumber(till), tonumber(count)
      if till * 1000 > now then
        if till == drop then count, drop = count - 1, nil end
        if till == take then count, take = count + 1, nil end
        if count > 0 then
          n, open, last = n + 1, open + count, max(last, till)
          out[n] = till .. ':' .. count
        end
      end
    end
  end
  if take then
    open, last, out[n + 1] = open + 1, max(last, take), take .. ':1'
  end
  scope.open, scope.last, scope.relet = open, last, table.concat(out, ',')
end

-- The part of the state that the limits are in.
local function text_of(scope)
  if scope.limits == 0 then return '|' .. scope.time end
  local values = scope.values
  local text = format('%s|%d' .. string.rep(' %d', #values), scope.sig, scope.time, unpack(values))
  if scope.draining then text = text .. '|' .. format(string.rep('%d ', #scope.draining), unpack(scope.draining)) end
  return text
end

-- Writes a scope's state, its leases as leases() has left them. It expires when it would be full again (never sooner: a fast drain is not
-- counted on) and no lease is open, for then it says nothing; pad keeps it longer where time is the caller's. 8e12 ms, 253 years, is what
-- fits a Go duration.
local function store(key, scope, text)
  local ttl, values, at = 0, scope.values, scope.at
  for i = 1, #values / 2 do
    local b = scope.entries and scope.entries[i]
    local capacity, window = b and b.capacity or tonumber(ARGV[at + 3 * i - 3]), b and b.window or tonumber(ARGV[at + 3 * i - 2])
    ttl = max(ttl, values[2 * i - 1] / capacity * window)
  end
  if scope.limits == 0 then
    text = scope.head or ''
    if text ~= '' then ttl = max(0, call('PTTL', key)) end
  elseif ttl == 0 then
    text = ''
  end
  if scope.open > 0 then text, ttl = text .. ';' .. scope.relet, max(ttl, scope.last * 1000 - now) end
  if text == '' then
    call('DEL', key)
  else
    call('SET', key, text, 'PX', format('%d', min(floor(ttl) + 2 + scope.lag + pad, 8000000000000)))
  end
end
