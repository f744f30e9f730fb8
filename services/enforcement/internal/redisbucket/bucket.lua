-- The arithmetic of pkg/limit/bucket.go, step for step, in Lua's numbers. Prepended, after prelude.lua, to the scripts that read or change
-- buckets.
--
-- Exact because every intermediate value is an integer below 2^53, or saturates at MAX = 2^53-1. math.fmod is exact; the % operator
-- is not for large numbers. Numbers become text by %d; tostring would round them to 14 digits.
--
-- State of a scope, as text:  <id>:<capacity>,…|<time of the last operation, ms> <consumed> <credit> …[|<fast> …][;<lease end, s>:<how many>,…]
-- id is what is counted (r, t, i, o) and the window in seconds: "t60", "t86400". The unit of credit is 1/window-in-ms of one. The part
-- up to the first bar, and that bar, is the signature. Almost always it equals the one that the caller gives, and no fast drain is going on: then nothing
-- but the numbers has to be read. Leases have no owner here: a reservation knows when its own ends.
--
-- All of it is one function: a function that is made costs in every call of a script, and the common check needs none of them.
local function library()
  local function drained(rate, window, credit, ms)
    local all = rate * ms + credit
    if all <= MAX then
      local left = all % window -- exact below 2^53
      return (all - left) / window, left
    end
    local rest, odd = math.fmod(ms, window), math.fmod(rate, window)
    local part = rest * odd + credit
    local left = math.fmod(part, window)
    return min((ms - rest) / window * rate + rest * ((rate - odd) / window) + (part - left) / window, MAX), left
  end

  -- Reads a state whose signature is another one or that drains fast, lets ms pass, and takes on the limits of nums; if keep, what exists keeps its capacity. A limit that is lifted for a while keeps its consumption: such entries come after the given ones.
  -- Returns consumed and credit in turn, the fast drains or false, the signature, whether a capacity has changed, all entries and how many.
  local function slowly(text, sig, ms, nums, keep)
    -- The least time in ms in which need drains. The quotient of doubles is off by less than one; the loops make it exact.
    local function wait_for(rate, window, credit, need)
      local odd = math.fmod(need, rate)
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
        window = floor(tonumber(sub(id, 2)) * 1000 + 0.5)}
      buckets[id], order[k] = b, b
    end
    local values, changed, draining, current, entries, i = {}, false, {}, {}, {}, 0
    for id in string.gmatch(sig, '([^:,]+):') do
      local capacity, b = nums[3 * i + 1], buckets[id]
      if not b or b.consumed == 0 then -- an empty bucket says nothing, not even of its capacity
        b = {id = id, consumed = 0, credit = 0, fast = 0, capacity = capacity, window = nums[3 * i + 2]}
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
    if max(0, unpack(draining)) == 0 then draining = false end
    return values, draining, table.concat(ids, ',') .. '|', changed, entries, i
  end

  -- Brings a scope's state to now. Its limits are in ARGV from at on: capacity, window in ms, and what the script wants to know of each. Gives
  --   limits, count   how many limits, and how many entries the state has: further ones are of limits that are lifted for a while
  --   nums, values    the limits' three values each, and consumed and credit of each entry
  --   time, lag       of the state, and how far that lies ahead of now
  --   leases          as text, or false
  local function bring(limits, sig, at, text, keep)
    -- All fields at once: a table that grows costs as much as the rest.
    local scope = {limits = limits, count = limits, sig = sig, nums = false, values = false, time = now, lag = 0, leases = false, head = '',
      draining = false, entries = false, changed = false, open = 0, relet = false, last = 0, pays = false}
    local nums, head = {0, 0, 0, 0, 0, 0, 0, 0, 0}, text
    for i = 1, 3 * limits do nums[i] = tonumber(ARGV[at + i - 1]) end
    scope.nums = nums
    if text then
      local semi = find(text, ';', 1, true)
      if semi then head, scope.leases = sub(text, 1, semi - 1), sub(text, semi + 1) end
    end
    if limits == 0 then
      scope.head = head or '' -- what other limits left there stays as it is
      scope.values = {}
      return scope
    end
    if not head or head == '' then
      local values = {0, 0, 0, 0, 0, 0}
      for i = 7, 2 * limits do values[i] = 0 end
      scope.values = values
      return scope
    end
    local from = #sig + 1
    local same = sub(head, 1, from - 1) == sig and not find(head, '|', from, true)
    local ms = now - match(head, '%d+', same and from or find(head, '|', 1, true))
    if ms < 0 then scope.time, scope.lag, ms = now - ms, -ms, 0 end
    if not same then
      scope.values, scope.draining, scope.sig, scope.changed, scope.entries, scope.count = slowly(head, sig, ms, nums, keep)
      return scope
    end
    local values = {match(head, limits == 3 and ' (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)' or string.rep(' (%d+) (%d+)', limits), from)}
    for i = 1, limits do
      local consumed, credit = tonumber(values[2 * i - 1]), 0
      if consumed > 0 then
        local tokens
        tokens, credit = drained(nums[3 * i - 2], nums[3 * i - 1], tonumber(values[2 * i]), ms)
        consumed = consumed - tokens
        if consumed <= 0 then consumed, credit = 0, 0 end
      end
      values[2 * i - 1], values[2 * i] = consumed, credit
    end
    scope.values = values
    return scope
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

  -- Counts a scope's open leases, and rewrites them: one that ends at drop less, one at take more (both in s), none that has ended.
  local function leases(scope, drop, take)
    if not scope.leases then
      if take then scope.open, scope.last, scope.relet = 1, take, take .. ':1' end
      return
    end
    local out, n, open, last = {}, 0, 0, 0
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
    if take then
      open, last, out[n + 1] = open + 1, max(last, take), take .. ':1'
    end
    scope.open, scope.last, scope.relet = open, last, table.concat(out, ',')
  end

  -- The part of the state that the limits are in.
  local function text_of(scope)
    if scope.limits == 0 then return '|' .. scope.time end
    local count = scope.count
    local text = format(count == 3 and '%s%d %d %d %d %d %d %d' or '%s%d' .. string.rep(' %d %d', count), scope.sig, scope.time, unpack(scope.values, 1, 2 * count))
    if scope.draining then text = text .. '|' .. format(string.rep('%d ', count), unpack(scope.draining)) end
    return text
  end

  -- Writes a scope's state, its leases as leases() has left them. It expires when it would be full again (never sooner: a fast drain is not
  -- counted on) and no lease is open, for then it says nothing; pad keeps it longer where time is the caller's. 8e12 ms, 253 years, is what
  -- fits a Go duration.
  local function store(key, scope, text)
    local ttl, values, nums = 0, scope.values, scope.nums
    for i = 1, scope.count do
      local b = scope.entries and scope.entries[i]
      local full = b and values[2 * i - 1] / b.capacity * b.window or values[2 * i - 1] / nums[3 * i - 2] * nums[3 * i - 1]
      if full > ttl then ttl = full end
    end
    if scope.limits == 0 then
      text = scope.head
      if text ~= '' then ttl = max(0, call('PTTL', key)) end
    elseif ttl == 0 then
      text = ''
    end
    if scope.open > 0 then text, ttl = text .. ';' .. scope.relet, max(ttl, scope.last * 1000 - now) end
    if text == '' then
      call('DEL', key)
    else
      call('SET', key, text, 'PX', format('%d', min(ttl + 2 + scope.lag + pad, 8000000000000)))
    end
  end

  return bring, add, leases, text_of, store
end
