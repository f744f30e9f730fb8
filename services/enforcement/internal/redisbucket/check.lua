-- One check: every limit of every scope, all or nothing, in one atomic step. A refused request changes no counter.
--
-- KEYS   n scopes' states, f fences, the tombstone, the shard's reservations; all in one hash slot
-- ARGV   1 now in ms, or '' for Redis's own time   2 mode: check | fresh | known | dry | status; fresh: nobody has used the request id;
--        known: grants nothing that was not granted before   3 n   4 f
--        5 lease in ms   6 retention in ms   7 the request's field   8 what the reservation keeps: costs by kind, tokens and output tokens
--        drawn, scopes, meta; then f versions, then for each scope: slots, 0 for unlimited, - for a slot that another shard holds, number of
--        limits, and as bucket.lua has them signature, format and numbers: capacity, window in ms, and what is charged here: negative if others lend more
--        than the cost
-- Reply  "-1 <fence> <published version>": a fence is newer, nothing was done
--        else as bytes, big-endian: code, 1 byte; now in ms, 6; end of the lease in s, 4; for each scope open leases, 6, length of its state, 4, and the
--        state; for code 2 then, as text, "<lease end in ms> <reserved requests> <tokens> <input tokens> <output tokens>"
--        code 1 granted, 0 refused, 2 granted before: nothing charged again; its lease is 0 if it was settled.
--        One string, for a reply of many values costs more than the rest of the script.
local mode, n, f = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local asks = mode == 'check' or mode == 'known'
local got = call('MGET', unpack(KEYS, 1, asks and n + f + 1 or n + f))

for i = 1, f do
  local published = got[n + i]
  if published and tonumber(published) > tonumber(ARGV[8 + i]) then return '-1 ' .. i .. ' ' .. published end
end

local lease_end = floor((now + ARGV[5] + 999) / 1000)
local code, held = 1, nil
if asks then
  local known = call('HGET', KEYS[n + f + 2], ARGV[7]) or got[n + f + 1]
  if known then
    local state, till, known_until, reserved = match(known, '^(%a) %d+ (%d+) (%d+) (%d+ %d+ %d+ %d+)')
    if tonumber(known_until) > (state == 'H' and now - till or now) then
      code, held = 2, (state == 'H' and till or '0') .. ' ' .. reserved
      if state == 'H' then -- from now on it is this check's: what takes back an earlier one leaves it alone
        local head = match(known, '^H %d+ %d+ %d+ %d+ %d+ %d+ %d+ %d+ %d+ %S+ ')
        call('HSET', KEYS[n + f + 2], ARGV[7], head .. match(ARGV[8], '^%d+ %d+ %d+ %d+ %d+ %d+ %S+ (.*)$'))
      end
    end
  end
end

-- Nearly every scope is plain: at most three limits, no state or a packed one of these very limits, a clock that has not run back, and numbers that stay
-- small. Such a scope needs nothing but locals: consumed (c) and credit (k) of each limit, its capacity (a), window (w) and charge (n), and of its leases how many are
-- open, the last end, how many end when a new one does (mine), and whether all others stay as they are (whole). The other scopes are the library's.
--
-- Lets ms pass for a limit: what is consumed then, and the credit. nil: the numbers are too large for here.
local function pass(consumed, credit, rate, window, ms)
  local all = rate * ms + credit
  if all > MAX then return nil, 0 end
  credit = all % window -- exact below 2^53
  consumed = consumed - (all - credit) / window
  if consumed <= 0 then return 0, 0 end
  return consumed, credit
end

local bring, add, leases, state_of, store
local arg, scopes = 9 + f, n ~= 1 and {}
-- of the scope that was looked at last: its limits, its state; if there are more they are kept, or read again
local a1, w1, n1, a2, w2, n2, a3, w3, n3, c1, k1, c2, k2, c3, k3, open, tail, scope, last, mine, whole
for s = 1, n do
  local slots, limits, sig, text = ARGV[arg], ARGV[arg + 1], ARGV[arg + 2], got[s]
  a1, w1, n1, a2, w2, n2, a3, w3, n3 = unpacked(NUMBERS, ARGV[arg + 4], 1)
  local plain = limits == '3' or limits == '2' or limits == '1'
  c1, k1, c2, k2, c3, k3, open, tail, scope, last, mine, whole = 0, 0, 0, 0, 0, 0, 0, nil, nil, lease_end, 0, true
  if plain and text then
    plain = sub(text, 1, #sig) == sig
    if plain then
      local time
      time, c1, k1, c2, k2, c3, k3, tail = unpacked(ARGV[arg + 3], text, #sig + 1)
      if limits == '2' then
        tail = c3
        c3, k3 = 0, 0
      elseif limits == '1' then
        tail = c2
        c2, k2, c3, k3 = 0, 0, 0, 0
      end
      local ms = now - EPOCH - time
      if ms < 0 then plain = false end
      if c1 > 0 then c1, k1 = pass(c1, k1, a1, w1, ms) end
      if c2 > 0 then c2, k2 = pass(c2, k2, a2, w2, ms) end
      if c3 > 0 then c3, k3 = pass(c3, k3, a3, w3, ms) end
      for at = tail, #text, 8 do
        local till, count = unpacked('>I4I4', text, at)
        if till * 1000 <= now then
          whole = false
        else
          open = open + count
          if till > last then last = till end
          if till == lease_end then mine, whole = count, false end
        end
      end
    end
  end
  plain = plain and now >= EPOCH and now - EPOCH < 1099511627776 and c1 and c2 and c3 and c1 + n1 <= 4294967295 and c2 + n2 <= 4294967295 and c3 + n3 <= 4294967295
  if plain then
    if code == 1 and (n1 > a1 - c1 or n2 > a2 - c2 or n3 > a3 - c3) then code = 0 end
  else
    if not bring then bring, add, leases, state_of, store = library() end
    scope = bring(tonumber(limits), arg + 2, text, false)
    leases(scope)
    open = scope.open
    for i = 1, code == 1 and scope.limits or 0 do
      if scope.nums[3 * i] > scope.nums[3 * i - 2] - scope.values[2 * i - 1] then code = 0 end
    end
  end
  if code == 1 and slots ~= '0' and slots ~= '-' and open >= tonumber(slots) then code = 0 end
  if scopes then scopes[s] = {c1, k1, c2, k2, c3, k3, open, tail, scope, last, mine, whole} end
  arg = arg + 5
end

local granted = code == 1 and (mode == 'check' or mode == 'fresh')
if granted then
  local record = format('H %d %d000 ', now, lease_end) .. ARGV[6] .. ' ' .. ARGV[8]
  if mode == 'check' then
    call('HSET', KEYS[n + f + 2], ARGV[7], record)
  elseif call('HSETNX', KEYS[n + f + 2], ARGV[7], record) == 0 then -- the caller's connection broke, and it sent the same call again
    local till, reserved = match(call('HGET', KEYS[n + f + 2], ARGV[7]), '^%a %d+ (%d+) %d+ (%d+ %d+ %d+ %d+)')
    code, held, granted = 2, till .. ' ' .. reserved, false
  end
end
local charged = granted or (code == 1 and mode == 'dry')
local reply = scopes and packed('>I1I6I4', code, now, lease_end)
arg = 9 + f
for s = 1, n do
  if scopes then c1, k1, c2, k2, c3, k3, open, tail, scope, last, mine, whole = unpack(scopes[s], 1, 12) end
  local ours, state = ARGV[arg] ~= '-' and 1 or 0, nil
  if scope then
    local is_packed
    if scope.changed and not granted then store(KEYS[s], scope, state_of(scope)) end
    if charged then
      for i = 1, scope.limits do add(scope.values, i, scope.nums[3 * i]) end
    end
    state, is_packed = state_of(scope)
    if granted then
      if ours == 1 then leases(scope, nil, lease_end) end
      store(KEYS[s], scope, state, is_packed)
    end
  else
    local ttl, sig = 0, ARGV[arg + 2]
    if charged then
      if scopes then a1, w1, n1, a2, w2, n2, a3, w3, n3 = unpacked(NUMBERS, ARGV[arg + 4], 1) end
      c1, c2, c3 = c1 + n1, c2 + n2, c3 + n3
      if c1 <= 0 then c1, k1 = 0, 0 end
      if c2 <= 0 then c2, k2 = 0, 0 end
      if c3 <= 0 then c3, k3 = 0, 0 end
      local t1, t2, t3 = c1 / a1 * w1, c2 / a2 * w2, c3 / a3 * w3
      ttl = t1 > t2 and t1 or t2
      if t3 > ttl then ttl = t3 end
    end
    if granted then
      local ends, text = '', got[s]
      if tail and whole then
        ends = sub(text, tail)
      else
        for at = tail or 1, tail and #text or 0, 8 do
          local till = unpacked('>I4', text, at)
          if till ~= lease_end and till * 1000 > now then ends = ends .. sub(text, at, at + 7) end
        end
      end
      mine = mine + ours
      if mine > 0 then ends = ends .. packed('>I4I4', lease_end, mine) end
      state = sig .. packed(ARGV[arg + 3], now - EPOCH, c1, k1, c2, k2, c3, k3) .. ends
      call('SET', KEYS[s], state, 'PX', format('%d', min(max(ttl, last * 1000 - now) + 2 + pad, 8000000000000)))
    else
      state = sig .. packed(ARGV[arg + 3], now - EPOCH, c1, k1, c2, k2, c3, k3)
    end
  end
  if charged then open = open + (granted and ours or 1) end
  if scopes then
    reply = reply .. packed('>I6I4', open, #state) .. state
  else
    reply = packed('>I1I6I4I6I4', code, now, lease_end, open, #state) .. state
  end
  arg = arg + 5
end
return held and reply .. held or reply
