-- Draws output tokens of an open reservation: from the reservation first, and what goes beyond it from the buckets of every scope that the
-- check reserved in, all or nothing; a scope that isn't given any more is charged, and refuses nothing. Renews the lease either way.
--
-- KEYS   n scopes' states, n notes that they were shared out, f fences, the tombstone, the shard's reservations; all in one hash slot, as are those of
--        scopes that aren't given
-- ARGV   1 now in ms, or ''   2 n   3 f   4 lease in ms   5 retention in ms   6 the request's field   7 tokens
--        8 how many arguments come before what other shards lend to each limit of each scope, 0: nothing
--        9 the new end of the lease in s, or '': by 4   10 scopes that have moved away and were charged there, as <kind>=<name>, comma separated, with
--        11 and 12 so many extra tokens and output tokens   13 1: one of them has no room
--        14 loans to the given scopes, as prelude.lua has them; then f versions, then for each scope: <kind>=<name>,
--        number of limits, -1 for those of its state, and as bucket.lua has them signature, format and numbers: capacity, window in ms, what it counts (1..4)
-- Reply  {-1, fence, published version}: a fence is newer, nothing was done
--        {code, now, lease end, lease end before, meta of the check, extra tokens, extra output tokens, scopes that are held, then for each scope: pays (0|1),
--        open leases, state}; code 1 drawn, 0 refused, 2 the reservation has ended, 3 it is unknown
--        code 4: nothing was done, for scopes have moved away that were not charged with so much: after the scopes that are held <kind>=<name> and where
--        it lies: for each that has moved
local bring, add, leases, state_of, store, _, add_own, gone = library()
local n, f = tonumber(ARGV[2]), tonumber(ARGV[3])
local got, open = call('MGET', unpack(KEYS, 1, 2 * n + f + 1)), KEYS[2 * n + f + 2]

for i = 1, f do
  local published = got[2 * n + i]
  if published and tonumber(published) > tonumber(ARGV[14 + i]) then return {-1, i, tonumber(published)} end
end

local known = call('HGET', open, ARGV[6]) or got[2 * n + f + 1]
local tokens = tonumber(ARGV[7])
local code, extra, held, checked, was, r, t, i, o, dt, dout, meta = 3, {0, 0, 0, 0}, ''
if known then
  local state, known_until
  state, checked, was, known_until, r, t, i, o, dt, dout, held, meta =
    match(known, '^(%a) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%S+) (.*)$')
  held = ',' .. held .. ','
  if tonumber(known_until) > (state == 'H' and now - was or now) then
    code = state == 'H' and 1 or 2
    if code == 1 then
      t, o, dt, dout = tonumber(t), tonumber(o), tonumber(dt), tonumber(dout)
      extra[2], extra[4] = max(0, min(dt + tokens, MAX) - t), max(0, min(dout + tokens, MAX) - o)
    end
  end
end

local lease_end = tonumber(ARGV[9]) or floor((now + ARGV[4] + 999) / 1000)
local reply = {code, now, lease_end * 1000, code < 2 and tonumber(was) or 0, code < 2 and meta or '', extra[2], extra[4], code < 2 and held or ''}
local given, own, moved, paid = {}, {}, {}, extra[2] == tonumber(ARGV[11]) and extra[4] == tonumber(ARGV[12])
local function here(id, text, part)
  local where = gone(text, part, tonumber(checked))
  if where then
    moved[#moved + 1], moved[#moved + 2] = id, where
    paid = paid and find(',' .. ARGV[10] .. ',', ',' .. id .. ',', 1, true)
  end
  return not where
end
local arg, scopes, lent = 15 + f, {}, tonumber(ARGV[8])
for s = 1, n do
  local limits, id = tonumber(ARGV[arg + 1]), ARGV[arg]
  local scope = bring(limits, arg + 2, got[s], false)
  given[id], scope.id = true, id
  scope.pays = code < 2 and find(held, ',' .. id .. ',', 1, true) and here(id, got[s], got[n + s])
  for l = 1, limits do
    local n = extra[scope.nums[3 * l]]
    if lent > 0 then
      lent = lent + 1
      n = n - ARGV[lent]
    end
    scope.nums[3 * l] = n
    if scope.pays and n > 0 and n > scope.nums[3 * l - 2] - scope.values[2 * l - 1] then code = 0 end
  end
  arg = arg + 5
  scopes[s] = scope
end
for id, name in string.gmatch(code < 2 and held or '', ',(%a+=([^,]+))') do
  if not given[id] then
    local shard = sub(open, 1, -2)
    local both = call('MGET', shard .. 'b:' .. name, shard .. 'p:' .. name)
    if here(id, both[1], both[2]) then own[#own + 1] = {id, shard .. 'b:' .. name, both[1]} end
  end
end
if #moved > 0 and not paid then
  reply[1] = 4
  for k = 1, #moved do reply[8 + k] = moved[k] end
  return reply
end
if code == 1 and ARGV[13] == '1' then code = 0 end
reply[1] = code

local function renew(scope, id)
  if find(held, ',~' .. id .. '#', 1, true) then leases(scope) else leases(scope, tonumber(was) / 1000, lease_end) end
end
local beyond = code == 1 and extra[2] + extra[4] > 0
for s = 1, n do
  local scope = scopes[s]
  if scope.pays then
    if beyond then
      if scope.limits < 0 then add_own(scope, extra) end
      for l = 1, scope.limits do add(scope.values, l, scope.nums[3 * l]) end
    end
    renew(scope, scope.id)
    store(KEYS[s], scope, state_of(scope))
  else
    leases(scope)
    if scope.changed then store(KEYS[s], scope, state_of(scope)) end
  end
  local at = 3 * s + 6
  reply[at], reply[at + 1], reply[at + 2] = scope.pays and 1 or 0, scope.open, (state_of(scope))
end
for _, w in ipairs(own) do
  local scope = bring(-1, 0, w[3], true)
  if beyond then add_own(scope, extra) end
  renew(scope, w[1])
  store(w[2], scope, state_of(scope))
end
if code < 2 then
  if code == 1 then
    t, o, dt, dout = min(t + extra[2], MAX), min(o + extra[4], MAX), min(dt + tokens, MAX), min(dout + tokens, MAX)
  end
  if beyond and ARGV[14] ~= '' then
    for loan, id in string.gmatch(ARGV[14], '(%+([^#]*)[^,]*)') do
      for s = 1, n do
        if scopes[s].id == id and scopes[s].pays then held = held .. loan .. ',' end
      end
    end
  end
  call('HSET', open, ARGV[6], format('H %s %d000 %s %s %d %s %d %d %d %s %s', checked, lease_end, ARGV[5], r, t, i, o,
    dt, dout, sub(held, 2, -2), meta))
end
return reply
