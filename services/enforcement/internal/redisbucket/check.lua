-- One check: every limit of every scope, all or nothing, in one atomic step. A refused request changes no counter.
--
-- KEYS   n scopes' states, the reservation, f fences, the index of ends; all in one hash slot
-- ARGV   1 now in ms, or '' for Redis's own time   2 mode: check | dry | status   3 n   4 f   5 lease in ms   6 retention in ms
--        7 member of the index   8 what the reservation keeps: costs by kind, tokens and output tokens drawn, scopes, meta
--        then f versions, then for each scope: slots, number of limits, signature, and for each limit: capacity, window in ms, cost
-- Reply  "-1 <fence> <published version>": a fence is newer, nothing was done
--        "<code> <now> <lease end> <reserved requests> <tokens> <input tokens> <output tokens>", the reserved ones of a repeat, else 0; then
--        for each scope a line "<open leases> <state>". One string, for a reply of many values costs more than the rest of the script.
--        code 1 granted, 0 refused, 2 granted before: nothing charged again; its lease is 0 if it was settled. Times in ms.
local mode, n, f = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local got = call('MGET', unpack(KEYS, 1, n + 1 + f))

for i = 1, f do
  local published = got[n + 1 + i]
  if published and tonumber(published) > tonumber(ARGV[8 + i]) then return '-1 ' .. i .. ' ' .. published end
end

local lease_end = floor((now + ARGV[5] + 999) / 1000)
local code, held = 1, ' ' .. lease_end .. '000 0 0 0 0'
if mode == 'check' and got[n + 1] then
  local state, till, known_until, reserved = match(got[n + 1], '^(%a) %d+ (%d+) (%d+) (%d+ %d+ %d+ %d+)')
  if tonumber(known_until) > now then
    code, held = 2, (state == 'H' and ' ' .. till or ' 0') .. ' ' .. reserved
  end
end

local arg, scopes = 9 + f, {}
for s = 1, n do
  local slots, limits = tonumber(ARGV[arg]), tonumber(ARGV[arg + 1])
  local scope = {limits = limits, sig = ARGV[arg + 2], at = arg + 3, open = 0}
  bring(scope, got[s])
  if scope.leases then leases(scope) end
  if slots > 0 and scope.open >= slots and code == 1 then code = 0 end
  arg = arg + 3
  for i = 1, limits do
    if tonumber(ARGV[arg + 2]) > tonumber(ARGV[arg]) - scope.values[2 * i - 1] and code == 1 then code = 0 end
    arg = arg + 3
  end
  scopes[s] = scope
end

local granted = code == 1 and mode == 'check'
local reply = code .. ' ' .. now .. held
for s = 1, n do
  local scope = scopes[s]
  if scope.changed and not granted then store(KEYS[s], scope, text_of(scope)) end
  if granted or (code == 1 and mode == 'dry') then
    for i = 1, scope.limits do add(scope.values, i, tonumber(ARGV[scope.at + 3 * i - 1])) end
    scope.open = scope.open + 1
  end
  local text = text_of(scope)
  if granted then
    if scope.leases then
      leases(scope, nil, lease_end)
    else
      scope.relet, scope.last = lease_end .. ':1', lease_end
    end
    store(KEYS[s], scope, text)
  end
  reply = reply .. '\n' .. scope.open .. ' ' .. text
end
if granted then
  local known_for = ARGV[5] + ARGV[6] + 1000
  call('SET', KEYS[n + 1], 'H ' .. now .. ' ' .. lease_end .. '000 ' .. (lease_end * 1000 + ARGV[6]) .. ' ' .. ARGV[8], 'PX', known_for + pad)
  note_due(KEYS[#KEYS], lease_end * 1000, ARGV[7])
end
return reply
