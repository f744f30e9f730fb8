-- Moves room between a shard and whoever asks: takes amounts as far as there is room, or gives them back; takes a slot if one is free, or
-- drops its lease. A scope that has moved away gives nothing and takes nothing.
--
-- KEYS   n scopes' states, in one hash slot
-- ARGV   1 now in ms, or ''   2 n   3 1: buckets keep their capacity; then for each scope: slots, number of limits, and as bucket.lua has them signature, format and numbers: capacity,
--        window in ms and amount; then lease to drop and lease to take, ends in s or '', and 1 if amounts and slot are taken whether there is room or not
-- Reply  {now, then for each scope: slot taken (0|1), open leases, state, and for each limit the amount moved, as text}
local bring, add, leases, state_of, store = library()
local n = tonumber(ARGV[2])
local got = call('MGET', unpack(KEYS, 1, n))
local reply, arg = {now}, 4
for s = 1, n do
  local slots, limits = tonumber(ARGV[arg]), tonumber(ARGV[arg + 1])
  local scope = bring(limits, arg + 2, got[s], ARGV[3] == '1')
  arg = arg + 5
  local drop, take, debt = tonumber(ARGV[arg]), tonumber(ARGV[arg + 1]), ARGV[arg + 2] == '1'
  local away = got[s] and sub(got[s], 1, 1) == '>'
  arg = arg + 3
  leases(scope, drop)
  local taken = take and not away and (slots == 0 or debt or scope.open < slots)
  local moved = {}
  for l = 1, limits do
    local amount = scope.nums[3 * l]
    if away then amount = 0 end
    if amount > 0 and not debt then amount = max(0, min(amount, scope.nums[3 * l - 2] - scope.values[2 * l - 1])) end
    add(scope.values, l, amount)
    moved[l] = format('%d', amount)
  end
  if taken then leases(scope, drop, take) end
  local state, is_packed = state_of(scope)
  if not away then store(KEYS[s], scope, state, is_packed) end
  reply[#reply + 1] = taken and 1 or 0
  reply[#reply + 1] = scope.open
  reply[#reply + 1] = state
  for l = 1, limits do reply[#reply + 1] = moved[l] end
end
return reply
