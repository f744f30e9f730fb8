-- Corrects one scope for a reservation that lies in another shard: charges or gives back amounts, and moves its lease.
--
-- KEYS   1 the scope's state   2 the mark of the move that should have brought it here   3 the mark of this correction; in one hash slot
-- ARGV   1 now in ms, or ''   2 1: the move must have been made   3 for how long the correction's mark is kept, in ms, so that it is made once; '': no mark
--        4 1: buckets keep their capacity   5 1: charge all or nothing, as there is room   6 lease to drop   7 lease to take, ends in s or ''
--        8..11 requests, tokens, input tokens, output tokens   12 age in ms, as in settle.lua   13 number of limits, -1 for those of its state, then as
--        bucket.lua has them signature, format and numbers: capacity, window in ms, what it counts (1..4)
-- Reply  {-1}: the move was not made yet, nothing was done   {0, where it lies}: it has moved away, nothing was done
--        {1, a lease was dropped (0|1)[, there was room (0|1), now, open leases, state before]}: corrected, if it has four more, by this call
local bring, add, leases, state_of, store, drained, add_own = library()
if ARGV[3] ~= '' then
  local before = call('GET', KEYS[3])
  if before then return {1, tonumber(before)} end
end
if ARGV[2] == '1' and call('EXISTS', KEYS[2]) == 0 then return {-1} end
local text = call('GET', KEYS[1])
local where = text and match(text, '^>([^;]*);')
if where then return {0, where} end

local limits, room, age = tonumber(ARGV[13]), 1, tonumber(ARGV[12])
local amounts = {tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])}
local scope = bring(limits, 14, text, ARGV[4] == '1')
local before = state_of(scope)
for l = 1, limits do
  local n = amounts[scope.nums[3 * l]]
  if ARGV[5] == '1' and n > 0 and n > scope.nums[3 * l - 2] - scope.values[2 * l - 1] then room = 0 end
end
if room == 1 then
  if limits < 0 then add_own(scope, amounts) end
  for l = 1, limits do
    local n = amounts[scope.nums[3 * l]]
    if age > 0 then
      local window, gone = scope.nums[3 * l - 1], nil
      gone, scope.values[2 * l] = drained(n, window, scope.values[2 * l], min(age, window))
      n = n - gone
    end
    add(scope.values, l, n)
    if scope.values[2 * l - 1] == 0 then scope.values[2 * l] = 0 end
  end
end
local dropped = leases(scope, tonumber(ARGV[6]), tonumber(ARGV[7])) and 1 or 0
store(KEYS[1], scope, state_of(scope))
if ARGV[3] ~= '' then call('SET', KEYS[3], dropped, 'PX', ARGV[3]) end
return {1, dropped, room, now, scope.open, before}
