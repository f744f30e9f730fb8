-- Ends a reservation once: consumed += actual - reserved in every scope that it holds, given or not, and the slots return. A given scope that it doesn't
-- hold is charged in full if it is a group of models. A settle that finds the reservation ended changes nothing. One that finds nothing is still usage:
-- debited in full in every given scope. A cancel takes back an open reservation as if it had never been granted, and else changes nothing.
--
-- KEYS   n scopes' states, n notes that they were shared out, the tombstone, the shard's reservations; all in one hash slot, as are those of scopes that
--        aren't given
-- ARGV   1 now in ms, or ''   2 n   3 retention in ms, 4 the request's field   5..8 actual: requests, tokens, input tokens, output tokens
--        9 meta; to cancel: of the check, or '' for any   10 grace in ms   11 any | known: change nothing if it is unknown | cancel
--        12 age in ms: of what was used that long ago, and not held, only what a burst of that age has not drained is debited
--        13 scopes that have moved away and were corrected there, as <kind>=<name>, comma separated; then for each scope: <kind>=<name>, number of limits,
--        -1 for those of its state, and as bucket.lua has them signature, format and numbers: capacity, window in ms, what it counts (1..4)
-- Reply  {status, now, checked at (0: unknown), reserved requests, tokens, input tokens, output tokens, meta of the check, meta of the
--        settle that counted, emitted (0|1), end of the lease that was settled or 0, 0 or 1 for each given scope: it was charged here; scopes that are held}
--        status 1 settled or cancelled, 2 already settled, 3 unknown reservation
--        status 4: nothing was done, for scopes have moved away that are not in 13: after the scopes that are held <kind>=<name>, held (0|1), where it lies:
--        for each of them
local bring, add, leases, state_of, store, drained, add_own, gone = library()
local n, open, mode = tonumber(ARGV[2]), KEYS[#KEYS], ARGV[11]
local got = call('MGET', unpack(KEYS, 1, 2 * n + 1))
local known = call('HGET', open, ARGV[4]) or got[2 * n + 1]

local status, checked_at, scopes, r, t, i, o, check_meta, lease_end = 3, 0, '', 0, 0, 0, 0, '', 0
if known then
  local state, at, till, known_until, kr, kt, ki, ko, k, m = match(known, '^(%a) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) %d+ %d+ (%S+) (.*)$')
  if tonumber(known_until) > (state == 'H' and now - till or now) then
    checked_at, r, t, i, o = tonumber(at), tonumber(kr), tonumber(kt), tonumber(ki), tonumber(ko)
    if state ~= 'H' then
      local length, both = match(m, '^(%d+) (.*)$')
      return {2, now, checked_at, r, t, i, o, sub(both, 1, tonumber(length)), sub(both, tonumber(length) + 1),
        state == 'E' and 1 or 0, 0, '', ''}
    end
    status, scopes, check_meta, lease_end = 1, ',' .. k .. ',', m, tonumber(till) / 1000
  end
end
if mode == 'cancel' and sub(check_meta, -#ARGV[9]) ~= ARGV[9] and ARGV[9] ~= '' then status = 3 end
if status == 3 and mode ~= 'any' then return {3, now, 0, 0, 0, 0, 0, '', '', 0, 0, '', ''} end

-- What is to be corrected: key, state, number of limits, where they begin in ARGV, held.
local work, given, moved, charged, done = {}, {}, {4, now, checked_at, r, t, i, o, '', '', 0, lease_end * 1000, '', scopes}, '', ',' .. ARGV[13] .. ','
local function note(id, key, text, part, limits, at, held) -- whether it is here
  local where = gone(text, part, checked_at)
  if not where then
    work[#work + 1] = {key, text, limits, at, held and true, id}
  elseif not find(done, ',' .. id .. ',', 1, true) then
    moved[#moved + 1], moved[#moved + 2], moved[#moved + 3] = id, held and 1 or 0, where
  end
  return not where
end
local arg = 14
for s = 1, n do
  local id = ARGV[arg]
  local held = find(scopes, ',' .. id .. ',', 1, true)
  given[id] = true
  if held or (mode ~= 'cancel' and (status == 3 or sub(id, 1, 6) == 'model=')) then
    charged = charged .. (note(id, KEYS[s], got[s], got[n + s], tonumber(ARGV[arg + 1]), arg + 2, held) and '1' or '0')
  else
    charged = charged .. '0'
  end
  arg = arg + 5
end
for id, name in string.gmatch(scopes, ',(%a+=([^,]+))') do
  if not given[id] then
    local shard = sub(open, 1, -2)
    local both = call('MGET', shard .. 'b:' .. name, shard .. 'p:' .. name)
    note(id, shard .. 'b:' .. name, both[1], both[2], -1, 0, true)
  end
end
if #moved > 13 then return moved end

-- What others have lent, by scope and limit. What was not used of it goes back to them, and not to this shard.
local lent = {}
for id, amounts in string.gmatch(scopes, ',%+([^#]*)#%d+#([^,]*)') do
  lent[id] = lent[id] or {}
  for limit, n in string.gmatch(amounts, '(%w+)=(%d+)') do lent[id][limit] = (lent[id][limit] or 0) + n end
end

local reserved, age = {r, t, i, o}, tonumber(ARGV[12])
for _, w in ipairs(work) do
  local key, text, limits, at, held, id = unpack(w, 1, 6)
  local scope = bring(limits, at, text, true)
  if limits < 0 then
    local amounts = {}
    for c = 1, 4 do amounts[c] = ARGV[4 + c] - (held and reserved[c] or 0) end
    add_own(scope, amounts)
  end
  local names, loans = limits > 0 and lent[id] and {}, lent[id]
  if names then
    for what, ms in string.gmatch(ARGV[at], '(%u%u)[%l%d]+:?([%l%d]*)') do names[#names + 1] = what .. ms end
  end
  for l = 1, limits do
    local counted = scope.nums[3 * l]
    local used = tonumber(ARGV[4 + counted])
    if held then
      used = used - reserved[counted]
      if names and used < 0 then used = used + min(-used, loans[names[l]] or 0) end
    elseif age > 0 then -- to a fraction of a token, else many small ones would never drain
      local window, gone = scope.nums[3 * l - 1], nil
      gone, scope.values[2 * l] = drained(used, window, scope.values[2 * l], min(age, window))
      used = used - gone
    end
    add(scope.values, l, used)
    if scope.values[2 * l - 1] == 0 then scope.values[2 * l] = 0 end
  end
  leases(scope, held and not find(scopes, ',~' .. id .. '#', 1, true) and lease_end)
  store(key, scope, state_of(scope))
end

if mode == 'cancel' then
  call('HDEL', open, ARGV[4])
else
  call('HSET', open, ARGV[4], settled(format('%d', checked_at), now + ARGV[10], ARGV[3], format('%d', r), format('%d', t), format('%d', i),
    format('%d', o), check_meta, ARGV[9]))
end
return {status, now, checked_at, r, t, i, o, check_meta, ARGV[9], 0, lease_end * 1000, charged, scopes}
