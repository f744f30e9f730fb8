-- One check: every limit of every scope, all or nothing, in one atomic step. A refused request changes no counter.
--
-- KEYS   n scopes' states, f fences, the tombstone, the shard's reservations; all in one hash slot
-- ARGV   1 now in ms, or '' for Redis's own time   2 mode: check | fresh | dry | status; fresh: nobody has used the request id   3 n   4 f
--        5 lease in ms   6 retention in ms   7 the request's field   8 what the reservation keeps: costs by kind, tokens and output tokens
--        drawn, scopes, meta; then f versions, then for each scope: slots, 0 for unlimited, - for a slot that another shard holds, number of
--        limits, signature, and for each limit: capacity, window in ms, and what is charged here: negative if others lend more than the cost
-- Reply  "-1 <fence> <published version>": a fence is newer, nothing was done
--        "<code> <now> <lease end> <reserved requests> <tokens> <input tokens> <output tokens>", the reserved ones of a repeat, else 0; then
--        for each scope a line "<open leases> <state>". One string, for a reply of many values costs more than the rest of the script.
--        code 1 granted, 0 refused, 2 granted before: nothing charged again; its lease is 0 if it was settled. Times in ms.
local mode, n, f = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local got = call('MGET', unpack(KEYS, 1, mode == 'check' and n + f + 1 or n + f))

for i = 1, f do
  local published = got[n + i]
  if published and tonumber(published) > tonumber(ARGV[8 + i]) then return '-1 ' .. i .. ' ' .. published end
end

local now_text = format('%d', now)
local lease_end = floor((now + ARGV[5] + 999) / 1000)
local lease_text = format('%d', lease_end)
local code, held = 1, nil
if mode == 'check' then
  local known = call('HGET', KEYS[n + f + 2], ARGV[7]) or got[n + f + 1]
  if known then
    local state, till, known_until, reserved = match(known, '^(%a) %d+ (%d+) (%d+) (%d+ %d+ %d+ %d+)')
    if tonumber(known_until) > (state == 'H' and now - till or now) then
      code, held = 2, (state == 'H' and till or '0') .. ' ' .. reserved
      if state == 'H' then -- from now on it is this check's: what takes back an earlier one leaves it alone
        local head, meta = match(known, '^(H %d+ %d+ %d+ %d+ %d+ %d+ %d+ %d+ %d+ %S+ )(.*)$')
        local note = match(meta, '^@%d+;') or '' -- of a slot that another shard holds
        call('HSET', KEYS[n + f + 2], ARGV[7], head .. note .. match(ARGV[8], '^%d+ %d+ %d+ %d+ %d+ %d+ %S+ (.*)$'))
      end
    end
  end
end

-- Nearly every scope is plain: no state, or one of these very limits without a fast drain, and a clock that has not run back. It is read here,
-- with nothing but locals and a table of its numbers: time, then consumed and credit of each limit. The others are the library's.
local bring, add, leases, text_of, store
local arg, scopes = 9 + f, {}
for s = 1, n do
  local slots, limits, sig, text = ARGV[arg], tonumber(ARGV[arg + 1]), ARGV[arg + 2], got[s]
  local values, open, let, plain = nil, 0, '', limits > 0
  local at = arg + 3
  if plain and not text then
    values = {now, 0, 0, 0, 0, 0, 0}
    for i = 8, 2 * limits + 1 do values[i] = 0 end
  elseif plain and sub(text, 1, #sig) == sig then
    values = {match(text, limits == 3 and '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)()' or '^(%d+)' .. string.rep(' (%d+) (%d+)', limits) .. '()', #sig + 1)}
    local tail = values[2 * limits + 2]
    if tail <= #text then
      plain = sub(text, tail, tail) == ';'
      let = sub(text, tail + 1)
      for till, count in string.gmatch(let, '(%d+):(%d+)') do
        if till * 1000 > now then open = open + count end
      end
    end
    local ms = now - values[1]
    plain = plain and ms >= 0
    values[1] = now
    for i = 1, limits do
      local consumed, credit = tonumber(values[2 * i]), 0
      if consumed > 0 then
        local window = tonumber(ARGV[at + 3 * i - 2])
        local all = ARGV[at + 3 * i - 3] * ms + values[2 * i + 1]
        if all > MAX then plain = false end
        credit = all % window -- exact below 2^53
        consumed = consumed - (all - credit) / window
        if consumed <= 0 then consumed, credit = 0, 0 end
      end
      values[2 * i], values[2 * i + 1] = consumed, credit
    end
  else
    plain = false
  end
  local scope
  if not plain then
    if not bring then bring, add, leases, text_of, store = library() end
    scope = bring(limits, sig, at, text, false)
    leases(scope)
    open, values = scope.open, scope.values
  end
  if code == 1 then
    if slots ~= '0' and slots ~= '-' and open >= tonumber(slots) then code = 0 end
    local off = plain and 0 or 1 -- the library's values have no time before them
    for i = 1, limits do
      if tonumber(ARGV[at + 3 * i - 1]) > ARGV[at + 3 * i - 3] - values[2 * i - off] then code = 0 end
    end
  end
  scopes[s] = {values, open, let, scope}
  arg = at + 3 * limits
end

local granted = code == 1 and (mode == 'check' or mode == 'fresh')
if granted then
  local record = 'H ' .. now_text .. ' ' .. lease_text .. '000 ' .. ARGV[6] .. ' ' .. ARGV[8]
  if mode == 'check' then
    call('HSET', KEYS[n + f + 2], ARGV[7], record)
  elseif call('HSETNX', KEYS[n + f + 2], ARGV[7], record) == 0 then -- the caller's connection broke, and it sent the same call again
    local till, reserved = match(call('HGET', KEYS[n + f + 2], ARGV[7]), '^%a %d+ (%d+) %d+ (%d+ %d+ %d+ %d+)')
    code, held, granted = 2, till .. ' ' .. reserved, false
  end
end
local charged = granted or (code == 1 and mode == 'dry')
local reply = code .. ' ' .. now_text .. ' ' .. (held or lease_text .. '000 0 0 0 0')
arg = 9 + f
for s = 1, n do
  local values, open, let, scope = unpack(scopes[s], 1, 4)
  local limits, sig, at, state = tonumber(ARGV[arg + 1]), ARGV[arg + 2], arg + 3, nil
  if scope then
    if scope.changed and not granted then store(KEYS[s], scope, text_of(scope)) end
    if charged then
      for i = 1, limits do add(values, i, tonumber(ARGV[at + 3 * i - 1])) end
      if ARGV[arg] ~= '-' or not granted then open = open + 1 end
    end
    state = text_of(scope)
    if granted then
      if ARGV[arg] ~= '-' then leases(scope, nil, lease_end) end
      store(KEYS[s], scope, state)
    end
  else
    local ttl = 0
    if charged then
      if ARGV[arg] ~= '-' or not granted then open = open + 1 end
      for i = 1, limits do
        local consumed = values[2 * i] + ARGV[at + 3 * i - 1]
        if consumed <= 0 then consumed, values[2 * i + 1] = 0, 0 end
        local full = consumed / ARGV[at + 3 * i - 3] * ARGV[at + 3 * i - 2]
        if full > ttl then ttl = full end
        values[2 * i] = consumed
      end
    end
    if limits == 3 then
      state = format('%s%d %d %d %d %d %d %d', sig, unpack(values, 1, 7))
    else
      state = format('%s%d' .. string.rep(' %d %d', limits), sig, unpack(values, 1, 2 * limits + 1))
    end
    if granted then
      local kept, last, ours = '', lease_end, ARGV[arg] ~= '-' and 1 or 0
      if let ~= '' then
        for till, count in string.gmatch(let, '(%d+):(%d+)') do
          local ends = tonumber(till)
          if ends == lease_end then
            ours = ours + count
          elseif ends * 1000 > now then
            kept = kept .. till .. ':' .. count .. ','
            if ends > last then last = ends end
          end
        end
      end
      local text = ttl == 0 and '' or state -- empty buckets say nothing
      ttl = max(ttl, last * 1000 - now) + 2 + pad
      if ours > 0 then kept = kept .. lease_text .. ':' .. ours end
      call('SET', KEYS[s], text .. ';' .. kept, 'PX', floor(min(ttl, 8000000000000)))
    end
  end
  reply = reply .. '\n' .. open .. ' ' .. state
  arg = at + 3 * limits
end
return reply
