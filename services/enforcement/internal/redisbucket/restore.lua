-- Raises what scopes have consumed to what bills say, where that is more. Slots, leases and reservations stay as they are.
--
-- KEYS   n scopes' states, f fences, the shard's reservations; all in one hash slot
-- ARGV   1 now in ms, or ''   2 n   3 f   4 1: what open reservations hold comes on top of a bill   5 1: change nothing; then f versions, then
--        for each scope: <kind>=<name>, number of limits (one at least), and as bucket.lua has them signature, format and numbers: capacity,
--        window in ms, what it counts (1..4), then the bill: a state of these limits
-- Reply  {-1, fence, published version}: a fence is newer, nothing was done
--        {now, then for each scope: raised (0|1), and for each limit, as text: consumed before, held, what the bill comes to by now}
-- Cost   the reservations of the shard are looked through, if they count: those are the requests in flight.
local bring, add, leases, state_of, store = library()
local n, f = tonumber(ARGV[2]), tonumber(ARGV[3])
local got = call('MGET', unpack(KEYS, 1, n + f))

for i = 1, f do
  local published = got[n + i]
  if published and tonumber(published) > tonumber(ARGV[5 + i]) then return {-1, i, tonumber(published)} end
end

local open = {}
if ARGV[4] == '1' then
  for _, text in ipairs(call('HVALS', KEYS[n + f + 1])) do
    local at, till, known, r, t, i, o, scopes = match(text, '^H (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) %d+ %d+ (%S+) ')
    if at and tonumber(known) > now - till then open[#open + 1] = {now - at, ',' .. scopes .. ',', tonumber(r), tonumber(t), tonumber(i), tonumber(o)} end
  end
end

local arg, reply = 6 + f, {now}
for s = 1, n do
  local id, limits = ARGV[arg], tonumber(ARGV[arg + 1])
  local scope = bring(limits, arg + 2, got[s], false)
  local bill = bring(limits, arg + 2, ARGV[arg + 5], false)
  local raised = 0
  reply[#reply + 1] = 0
  local at = #reply
  for l = 1, limits do
    local window, counted, held = scope.nums[3 * l - 1], scope.nums[3 * l], 0
    for _, o in ipairs(open) do
      -- What was reserved longer than a window ago has drained.
      if o[1] < window and find(o[2], ',' .. id .. ',', 1, true) then held = min(held + o[2 + counted], MAX) end
    end
    local had, billed = scope.values[2 * l - 1], bill.values[2 * l - 1]
    local to = min(billed + held, MAX)
    if billed > 0 and to > had then
      raised = 1
      scope.values[2 * l - 1], scope.values[2 * l] = to, bill.values[2 * l]
      local fast = bill.draining and bill.draining[l] or 0
      if fast > 0 then
        if not scope.draining then
          scope.draining = {}
          for k = 1, scope.count do scope.draining[k] = 0 end
        end
        scope.draining[l] = max(scope.draining[l], fast)
      end
    end
    reply[#reply + 1] = format('%d', had)
    reply[#reply + 1] = format('%d', held)
    reply[#reply + 1] = format('%d', billed)
  end
  reply[at] = raised
  if (raised == 1 or scope.changed) and ARGV[5] ~= '1' then
    leases(scope)
    store(KEYS[s], scope, state_of(scope))
  end
  arg = arg + 6
end
return reply
