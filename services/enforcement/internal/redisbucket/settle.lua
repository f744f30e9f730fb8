-- Ends a reservation once: consumed += actual - reserved in every scope, the slots return, a tombstone stays. A settle that finds the
-- tombstone changes nothing. One that finds nothing is still usage: debited in full. A cancel takes back an open reservation as if it had
-- never been granted, and else changes nothing.
--
-- KEYS   n scopes' states, the reservation, the index of ends; all in one hash slot
-- ARGV   1 now in ms, or ''   2 n   3 retention in ms, 4 member of the index   5..8 actual: requests, tokens, input tokens, output tokens
--        9 meta   10 grace in ms, '' to cancel; then for each scope: <kind>=<name>, number of limits, signature, and for each limit: capacity,
--        window in ms, what it counts (1..4)
-- Reply  {status, now, checked at (0: unknown), reserved requests, tokens, input tokens, output tokens, meta of the check, meta of the
--        settle that counted, emitted (0|1)}; status 1 settled or cancelled, 2 already settled, 3 unknown reservation
local n = tonumber(ARGV[2])
local got = call('MGET', unpack(KEYS, 1, n + 1))

local status, checked_at, scopes, reserved, check_meta, due, lease_end = 3, 0, '', {0, 0, 0, 0}, '', 0, nil
if got[n + 1] then
  local state, at, till, known_until, r, t, i, o, k, m = match(got[n + 1], '^(%a) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) %d+ %d+ (%S+) (.*)$')
  if tonumber(known_until) > now then
    checked_at, reserved = tonumber(at), {tonumber(r), tonumber(t), tonumber(i), tonumber(o)}
    if state ~= 'H' then
      local length, both = match(m, '^(%d+) (.*)$')
      return {2, now, checked_at, reserved[1], reserved[2], reserved[3], reserved[4], sub(both, 1, tonumber(length)),
        sub(both, tonumber(length) + 1), state == 'E' and 1 or 0}
    end
    status, scopes, check_meta, due, lease_end = 1, ',' .. k .. ',', m, tonumber(till), tonumber(till) / 1000
  end
end
if status == 3 and ARGV[10] == '' then return {3, now, 0, 0, 0, 0, 0, '', '', 0} end

local arg = 11
for s = 1, n do
  local limits, held = tonumber(ARGV[arg + 1]), find(scopes, ',' .. ARGV[arg] .. ',', 1, true)
  arg = arg + 3
  local scope = {limits = limits, sig = ARGV[arg - 1], at = arg, keep = true}
  bring(scope, got[s])
  for i = 1, limits do
    local counted = tonumber(ARGV[arg + 3 * i - 1])
    add(scope.values, i, tonumber(ARGV[4 + counted]) - (held and reserved[counted] or 0))
  end
  leases(scope, held and lease_end)
  store(KEYS[s], scope, text_of(scope))
  arg = arg + 3 * limits
end

if ARGV[10] == '' then
  call('DEL', KEYS[n + 1])
else
  local again = floor((now + ARGV[10] + 4999) / 5000) * 5000
  keep_settled(KEYS[n + 1], checked_at, again, tonumber(ARGV[3]), reserved, check_meta, ARGV[9])
  if again ~= floor((due + 4999) / 5000) * 5000 then note_due(KEYS[#KEYS], again, ARGV[4]) end
end
return {status, now, checked_at, reserved[1], reserved[2], reserved[3], reserved[4], check_meta, ARGV[9], 0}
