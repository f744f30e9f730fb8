-- Ends a reservation once: consumed += actual - reserved in every scope, the slots return. A settle that finds it ended changes nothing. One
-- that finds nothing is still usage: debited in full. A cancel takes back an open reservation as if it had never been granted, and else
-- changes nothing.
--
-- KEYS   n scopes' states, the tombstone, the shard's reservations; all in one hash slot
-- ARGV   1 now in ms, or ''   2 n   3 retention in ms, 4 the request's field   5..8 actual: requests, tokens, input tokens, output tokens
--        9 meta; to cancel: of the check, or '' for any   10 grace in ms   11 any | known: change nothing if it is unknown | cancel   12 age in
--        ms: of what was used that long ago, and not held, only what a burst of that age has not drained is debited; then for each scope: <kind>=<name>, with ? before it if it is passed over unless
--        it is held, number of limits, and as bucket.lua has them signature, format and numbers: capacity, window in ms, what it counts (1..4)
-- Reply  {status, now, checked at (0: unknown), reserved requests, tokens, input tokens, output tokens, meta of the check, meta of the
--        settle that counted, emitted (0|1), end of the lease that was settled or 0}; status 1 settled or cancelled, 2 already settled, 3 unknown reservation
local bring, add, leases, state_of, store, drained = library()
local n, open = tonumber(ARGV[2]), KEYS[#KEYS]
local got = call('MGET', unpack(KEYS, 1, n + 1))
local known = call('HGET', open, ARGV[4]) or got[n + 1]

local status, checked_at, scopes, r, t, i, o, check_meta, lease_end = 3, 0, '', 0, 0, 0, 0, '', 0
if known then
  local state, at, till, known_until, kr, kt, ki, ko, k, m = match(known, '^(%a) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) %d+ %d+ (%S+) (.*)$')
  if tonumber(known_until) > (state == 'H' and now - till or now) then
    checked_at, r, t, i, o = tonumber(at), tonumber(kr), tonumber(kt), tonumber(ki), tonumber(ko)
    if state ~= 'H' then
      local length, both = match(m, '^(%d+) (.*)$')
      return {2, now, checked_at, r, t, i, o, sub(both, 1, tonumber(length)), sub(both, tonumber(length) + 1),
        state == 'E' and 1 or 0, 0}
    end
    status, scopes, check_meta, lease_end = 1, ',' .. k .. ',', m, tonumber(till) / 1000
  end
end
if ARGV[11] == 'cancel' and sub(check_meta, -#ARGV[9]) ~= ARGV[9] and ARGV[9] ~= '' then status = 3 end
if status == 3 and ARGV[11] ~= 'any' then return {3, now, 0, 0, 0, 0, 0, '', '', 0, 0} end

local arg, reserved, age = 13, {r, t, i, o}, tonumber(ARGV[12])
for s = 1, n do
  local limits, optional, id = tonumber(ARGV[arg + 1]), match(ARGV[arg], '^(%??)(.*)$')
  local held = find(scopes, ',' .. id .. ',', 1, true)
  if held or optional == '' then
    local scope = bring(limits, arg + 2, got[s], true)
    for l = 1, limits do
      local counted = scope.nums[3 * l]
      local used = tonumber(ARGV[4 + counted])
      if held then
        used = used - reserved[counted]
      elseif age > 0 then -- to a fraction of a token, else many small ones would never drain
        local window, gone = scope.nums[3 * l - 1], nil
        gone, scope.values[2 * l] = drained(used, window, scope.values[2 * l], min(age, window))
        used = used - gone
      end
      add(scope.values, l, used)
      if scope.values[2 * l - 1] == 0 then scope.values[2 * l] = 0 end
    end
    leases(scope, held and not find(scopes, ',~' .. id .. ',', 1, true) and lease_end)
    store(KEYS[s], scope, state_of(scope))
  end
  arg = arg + 5
end

if ARGV[11] == 'cancel' then
  call('HDEL', open, ARGV[4])
else
  call('HSET', open, ARGV[4], settled(format('%d', checked_at), now + ARGV[10], ARGV[3], format('%d', r), format('%d', t), format('%d', i),
    format('%d', o), check_meta, ARGV[9]))
end
return {status, now, checked_at, r, t, i, o, check_meta, ARGV[9], 0, lease_end * 1000}
