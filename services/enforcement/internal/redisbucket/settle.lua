-- Ends a reservation once: consumed += actual - reserved in every scope, the slots return, a tombstone stays. A settle that finds the
-- tombstone changes nothing. One that finds nothing is still usage: debited in full.
--
-- KEYS   n scopes' states, the reservation, n scopes' leases, the index of ends; all in one hash slot
-- ARGV   1 now in ms, or ''   2 n   3 retention in ms, 4 lease member   5..8 actual: requests, tokens, input tokens, output tokens
--        9 meta   10 grace in ms, then for each scope: <kind>=<name>, number of limits, signature, and for each limit: capacity, window in ms, what it counts (1..4)
-- Reply  {status, now, checked at (0: unknown), reserved requests, tokens, input tokens, output tokens, meta of the check, meta of the
--        settle that counted, emitted (0|1)}; status 1 settled, 2 already settled, 3 unknown reservation
local now, pad = clock(ARGV[1])
local n = tonumber(ARGV[2])
local got = call('MGET', unpack(KEYS, 1, n + 1))

local status, checked_at, scopes, reserved, check_meta = 3, 0, '', {0, 0, 0, 0}, ''
if got[n + 1] then
  local state, at, known_until, r, t, i, o, k, m = match(got[n + 1], '^(%a) (%d+) %d+ (%d+) (%d+) (%d+) (%d+) (%d+) %d+ %d+ (%S+) (.*)$')
  if tonumber(known_until) > now then
    checked_at, reserved = tonumber(at), {tonumber(r), tonumber(t), tonumber(i), tonumber(o)}
    if state ~= 'H' then
      local length, both = match(m, '^(%d+) (.*)$')
      return {2, now, checked_at, reserved[1], reserved[2], reserved[3], reserved[4], string.sub(both, 1, tonumber(length)),
        string.sub(both, tonumber(length) + 1), state == 'E' and 1 or 0}
    end
    status, scopes, check_meta = 1, ',' .. k .. ',', m
  end
end

local arg = 11
for s = 1, n do
  local limits, held = tonumber(ARGV[arg + 1]), string.find(scopes, ',' .. ARGV[arg] .. ',', 1, true)
  arg = arg + 3
  if limits > 0 then
    local scope = {limits = limits, sig = ARGV[arg - 1], at = arg, keep = true}
    bring(scope, got[s], now)
    for i = 1, limits do
      local counted = tonumber(ARGV[arg + 3 * i - 1])
      add(scope.values, i, tonumber(ARGV[4 + counted]) - (held and reserved[counted] or 0))
    end
    store(KEYS[s], scope, text_of(scope), pad)
  end
  call('ZREM', KEYS[n + 1 + s], ARGV[4])
  arg = arg + 3 * limits
end

keep_settled(KEYS[n + 1], checked_at, now, tonumber(ARGV[3]), pad, reserved, check_meta, ARGV[9])
call('ZADD', KEYS[#KEYS], format('%d', now + tonumber(ARGV[10])), ARGV[4])
return {status, now, checked_at, reserved[1], reserved[2], reserved[3], reserved[4], check_meta, ARGV[9], 0}
