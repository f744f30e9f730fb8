-- The arithmetic of pkg/limit/bucket.go, step for step, in Lua's numbers. Prepended, after prelude.lua, to the scripts that read or change
-- buckets.
--
-- Exact because every intermediate value is an integer below 2^53, or saturates at MAX = 2^53-1. math.fmod is exact; the % operator
-- is not for large numbers. Numbers become text by %d; tostring would round them to 14 digits.
--
-- State of a scope: <signature>!<packed> almost always, else <signature>|<text>, and then leases. The signature names each limit: what is
-- counted (R, T, I, O), the window (S, M, H, D: a second, minute, hour, day; else X), its capacity in base 36 and, after X, ":" and the window in ms in
-- base 36: "RM14TMuv4TDapu8" is 40 requests and 40,000 tokens a minute and 500,000 tokens a day. The unit of credit is 1/window-in-ms of one.
--   packed  big-endian: time of the last operation, 5 bytes, ms since EPOCH; then for each limit consumed, 4 bytes, and credit, 2, 4 or 6, as the window
--           needs; then for each second in which leases end that second and how many, 4 bytes each
--   text    <time of the last operation, ms> <consumed> <credit> …[|<fast> …][;<lease end, s>:<how many>,…]   where packing has no place: a fast drain is
--           going on, limits are lifted for a while, or a number is larger. Empty buckets say nothing: only the part from ; on is kept of them.
-- Leases have no owner here: a reservation knows when its own ends.
--
-- A scope whose payer has moved leaves word in place of its state: ><move>;<move>;<the state it had>. The first says where it is now, the second by which
-- move it was frozen: that one has brought the state along, once its marks are in all shards that it goes to (take.lua, put.lua). A move is
-- "<shards, comma separated> <fence> <version>". Nobody changes a frozen state. A scope that was shared out to several shards has a note of it in each:
-- "<when, in ms> <move>". What was granted in one of them before lies in all of them.
--
-- Limits come as three arguments: the signature with its !, the packed state's format, and the limits' numbers, packed (prelude.lua).
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

  -- Reads a state of any form. Returns its leases, ends in s and counts in turn, and unless it has nothing else its time and its buckets, in order.
  local function decode(text)
    local spans, leases = {S = 1000, M = 60000, H = 3600000, D = 86400000}, {}
    local order, layout, sig, form = {}, '>I5', match(text, '^([%w:]*)(.)')
    for counted, span, capacity, ms in string.gmatch(sig, '(%u)(%u)([%l%d]+):?([%l%d]*)') do
      local window = spans[span] or tonumber(ms, 36)
      order[#order + 1] = {id = counted .. span .. ms, capacity = tonumber(capacity, 36), window = window, consumed = 0, credit = 0, fast = 0}
      layout = layout .. 'I4' .. (window <= 65536 and 'I2' or window <= 4294967296 and 'I4' or 'I6')
    end
    local numbers, fasts = {}, {}
    if form == '!' then
      numbers = {unpacked(layout, text, #sig + 2)}
      numbers[1] = numbers[1] + EPOCH
      for at = numbers[2 * #order + 2], #text, 8 do
        leases[#leases + 1], leases[#leases + 2] = unpacked('>I4I4', text, at)
      end
    else
      local head, ends = match(text, '^([^;]*);?(.*)$')
      for till, count in string.gmatch(ends, '(%d+):(%d+)') do leases[#leases + 1], leases[#leases + 2] = tonumber(till), tonumber(count) end
      local rest, drains = match(sub(head, #sig + 2), '^([^|]*)|?(.*)$')
      for digits in string.gmatch(rest, '%d+') do numbers[#numbers + 1] = tonumber(digits) end
      for digits in string.gmatch(drains, '%d+') do fasts[#fasts + 1] = tonumber(digits) end
    end
    for k, b in ipairs(order) do b.consumed, b.credit, b.fast = numbers[2 * k], numbers[2 * k + 1], fasts[k] or 0 end
    return leases, numbers[1], order
  end

  -- Lets ms pass for buckets and takes on the limits of nums; if keep, what exists keeps its capacity. A limit that is lifted for a while keeps
  -- its consumption: such entries come after the given ones.
  -- Returns consumed and credit in turn, the fast drains or false, the signature, whether a capacity has changed, all entries and how many.
  local function slowly(order, sig, ms, nums, keep)
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
    local function base36(n)
      local out = ''
      repeat
        local digit = math.fmod(n, 36)
        out, n = sub('0123456789abcdefghijklmnopqrstuvwxyz', digit + 1, digit + 1) .. out, (n - digit) / 36
      until n == 0
      return out
    end

    local buckets = {}
    for _, b in ipairs(order) do buckets[b.id] = b end
    local values, changed, draining, current, entries, i = {}, false, {}, {}, {}, 0
    for counted, span, ms36 in string.gmatch(sig, '(%u)(%u)[%l%d]+:?([%l%d]*)') do
      local id = counted .. span .. ms36
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
    for k, b in ipairs(entries) do
      ids[k] = sub(b.id, 1, 2) .. base36(b.capacity) .. (#b.id > 2 and ':' .. sub(b.id, 3) or '')
    end
    if max(0, unpack(draining)) == 0 then draining = false end
    return values, draining, table.concat(ids), changed, entries, i
  end

  -- Brings a scope's state to now. Its limits are in ARGV from at on; limits -1: they are those of its state. What has moved away is as if there was
  -- nothing. Gives
  --   limits, count   how many limits, and how many entries the state has: further ones are of limits that are lifted for a while
  --   nums, values    the limits' three numbers each, and consumed and credit of each entry
  --   time, lag       of the state, and how far that lies ahead of now
  --   leases          ends in s and counts, in turn
  local function bring(limits, at, text, keep)
    if text and sub(text, 1, 1) == '>' then text = nil end
    if limits < 0 then
      local scope = {limits = limits, count = 0, sig = '', nums = {}, values = {}, time = now, lag = 0, leases = false, text = text, draining = false, entries = {},
        changed = false, open = 0, last = 0, had = 0, pays = false, id = false}
      if text then
        local time, order
        scope.leases, time, order = decode(text)
        if time then
          if time > now then scope.time, scope.lag = time, time - now end
          scope.values, scope.draining, scope.sig, scope.changed, scope.entries, scope.count = slowly(order, '', max(0, now - time), {}, true)
        end
      end
      return scope
    end
    -- All fields at once: a table that grows costs as much as the rest.
    local scope = {limits = limits, count = limits, sig = sub(ARGV[at], 1, -2), layout = ARGV[at + 1], nums = false, values = false, time = now, lag = 0,
      leases = false, text = text, draining = false, entries = false, changed = false, open = 0, last = 0, had = 0, pays = false, id = false}
    local nums = {unpacked(NUMBERS, ARGV[at + 2], 1)}
    for i = 4, limits do nums[3 * i - 2], nums[3 * i - 1], nums[3 * i] = unpacked(TRIPLE, ARGV[at + 2], 20 * i - 19) end
    scope.nums = nums
    local time, order, values
    if limits > 0 and text and sub(text, 1, #ARGV[at]) == ARGV[at] then -- packed, and of these very limits
      values = {unpacked(scope.layout, text, #ARGV[at] + 1)}
      local leases = {}
      for p = values[2 * limits + 2], #text, 8 do
        leases[#leases + 1], leases[#leases + 2] = unpacked('>I4I4', text, p)
      end
      time, scope.leases = values[1] + EPOCH, leases
      for i = 1, 2 * limits do values[i] = values[i + 1] end
    elseif text then
      scope.leases, time, order = decode(text)
    end
    scope.had = scope.leases and #scope.leases or 0
    local ms = time and limits > 0 and now - time or 0
    if ms < 0 then scope.time, scope.lag, ms = now - ms, -ms, 0 end
    if limits == 0 then
      values = {} -- what other limits left there stays as it is
    elseif order then
      if not time then order = {} end
      values, scope.draining, scope.sig, scope.changed, scope.entries, scope.count = slowly(order, scope.sig, ms, nums, keep)
    elseif values then
      for i = 1, limits do
        local consumed, credit = values[2 * i - 1], 0
        if consumed > 0 then
          local tokens
          tokens, credit = drained(nums[3 * i - 2], nums[3 * i - 1], values[2 * i], ms)
          consumed = consumed - tokens
          if consumed <= 0 then consumed, credit = 0, 0 end
        end
        values[2 * i - 1], values[2 * i] = consumed, credit
      end
    else
      values = {0, 0, 0, 0, 0, 0}
      for i = 7, 2 * limits do values[i] = 0 end
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

  -- Charges what a scope's own limits count of amounts, by kind; what is empty says nothing, not even that it is a limit.
  local function add_own(scope, amounts)
    local kinds = {R = 1, T = 2, I = 3, O = 4}
    for i, b in ipairs(scope.entries) do add(scope.values, i, amounts[kinds[sub(b.id, 1, 1)]]) end
  end

  -- Counts a scope's open leases, and rewrites them: one that ends at drop less, one at take more (both in s), none that has ended. Tells whether one
  -- was dropped.
  local function leases(scope, drop, take)
    local old, out, open, last, wanted = scope.leases or {}, {}, 0, 0, drop
    for k = 1, #old, 2 do
      local till, count = old[k], old[k + 1]
      if till * 1000 > now then
        if till == drop then count, drop = count - 1, nil end
        if till == take then count, take = count + 1, nil end
        if count > 0 then
          open, last = open + count, max(last, till)
          out[#out + 1], out[#out + 2] = till, count
        end
      end
    end
    if take then
      open, last = open + 1, max(last, take)
      out[#out + 1], out[#out + 2] = take, 1
    end
    scope.open, scope.last, scope.leases = open, last, out
    return wanted and not drop
  end

  -- The part of the state that the limits are in, and whether it is packed.
  local function state_of(scope)
    if scope.count == 0 then return '|' .. scope.time, false end
    local count, values, time = scope.count, scope.values, scope.time - EPOCH
    local packable = count == scope.limits and not scope.draining and time >= 0 and time < 1099511627776
    for i = 1, packable and count or 0 do packable = packable and values[2 * i - 1] <= 4294967295 end
    if packable then return scope.sig .. '!' .. packed(scope.layout, time, unpack(values, 1, 2 * count)), true end
    local text = format('%s|%d' .. string.rep(' %d %d', count), scope.sig, scope.time, unpack(values, 1, 2 * count))
    if scope.draining then text = text .. '|' .. format(string.rep('%d ', count), unpack(scope.draining)) end
    return text, false
  end

  -- Writes a scope's state, its leases as leases() has left them. It expires when it would be full again (never sooner: a fast drain is not
  -- counted on) and no lease is open, for then it says nothing; pad keeps it longer where time is the caller's. 8e12 ms, 253 years, is what
  -- fits a Go duration.
  local function store(key, scope, state, is_packed)
    local ttl, values, nums = 0, scope.values, scope.nums
    for i = 1, scope.count do
      local b = scope.entries and scope.entries[i]
      local full = b and values[2 * i - 1] / b.capacity * b.window or values[2 * i - 1] / nums[3 * i - 2] * nums[3 * i - 1]
      if full > ttl then ttl = full end
    end
    if scope.limits == 0 then
      state, is_packed = scope.text or '', match(scope.text or '', '^[%w:]*!') ~= nil
      if is_packed then
        state = sub(state, 1, #state - 4 * scope.had)
      else
        state = match(state, '^[^;]*')
      end
      if state ~= '' then ttl = max(0, call('PTTL', key)) end
    elseif ttl == 0 then
      state, is_packed = '', false
    end
    if scope.open > 0 then
      local ends = scope.leases
      for k = 1, #ends, 2 do
        state = state .. (is_packed and packed('>I4I4', ends[k], ends[k + 1]) or format('%s%d:%d', k == 1 and ';' or ',', ends[k], ends[k + 1]))
      end
      ttl = max(ttl, scope.last * 1000 - now)
    end
    if state == '' then
      call('DEL', key)
    else
      call('SET', key, state, 'PX', format('%d', min(ttl + 2 + scope.lag + pad, 8000000000000)))
    end
  end

  -- Where what was granted at a time lies, if it isn't here any more.
  local function gone(text, part, granted_at)
    local where = text and match(text, '^>([^;]*);')
    if where or not part or granted_at == 0 then return where end
    local at, to = match(part, '^(%d+) (.*)$')
    return granted_at < tonumber(at) and to or nil
  end

  return bring, add, leases, state_of, store, drained, add_own, gone
end
