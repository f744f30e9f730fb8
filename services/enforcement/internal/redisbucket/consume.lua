-- Draws output tokens of an open reservation: from the reservation first, and what goes beyond it from the buckets of every scope that the
-- check reserved in, all or nothing. Renews the lease either way.
--
-- KEYS   n scopes' states, the reservation, f fences, n scopes' leases, the index of ends; all in one hash slot
-- ARGV   1 now in ms, or ''   2 n   3 f   4 lease in ms   5 retention in ms   6 lease member   7 tokens
--        then f versions, then for each scope: <kind>=<name>, number of limits, signature, and for each limit: capacity, window in ms,
--        what it counts (1..4)
-- Reply  {-1, fence, published version}: a fence is newer, nothing was done
--        {code, now, lease until, extra tokens, extra output tokens, then for each scope: pays (0|1), open leases, state as text}
--        code 1 drawn, 0 refused, 2 the reservation has ended, 3 it is unknown
local now, pad = clock(ARGV[1])
local n, f = tonumber(ARGV[2]), tonumber(ARGV[3])
local got = call('MGET', unpack(KEYS, 1, n + 1 + f))

for i = 1, f do
  local published = got[n + 1 + i]
  if published and tonumber(published) > tonumber(ARGV[7 + i]) then return {-1, i, tonumber(published)} end
end

local tokens = tonumber(ARGV[7])
local code, extra, held, checked, r, t, i, o, dt, dout, meta = 3, {0, 0, 0, 0}, ''
if got[n + 1] then
  local state, known_until
  state, checked, known_until, r, t, i, o, dt, dout, held, meta =
    match(got[n + 1], '^(%a) (%d+) %d+ (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%S+) (.*)$')
  if tonumber(known_until) > now then
    code = state == 'H' and 1 or 2
    if code == 1 then
      t, o, dt, dout = tonumber(t), tonumber(o), tonumber(dt), tonumber(dout)
      extra[2], extra[4] = max(0, min(dt + tokens, MAX) - t), max(0, min(dout + tokens, MAX) - o)
    end
  end
end

local arg, scopes, now_text = 8 + f, {}, format('%d', now)
for s = 1, n do
  local limits = tonumber(ARGV[arg + 1])
  local scope = {limits = limits, sig = ARGV[arg + 2], at = arg + 3}
  scope.pays = code < 2 and string.find(',' .. held .. ',', ',' .. ARGV[arg] .. ',', 1, true)
  scope.open = call('ZCOUNT', KEYS[n + 1 + f + s], '(' .. now_text, '+inf')
  bring(scope, got[s], now)
  arg = arg + 3
  for k = 1, limits do
    if scope.pays and extra[tonumber(ARGV[arg + 2])] > tonumber(ARGV[arg]) - scope.values[2 * k - 1] then code = 0 end
    arg = arg + 3
  end
  scopes[s] = scope
end

local lease_until = now + tonumber(ARGV[4])
local lease_text = format('%d', lease_until)
local reply = {code, now, lease_until, extra[2], extra[4]}
for s = 1, n do
  local scope, leases = scopes[s], KEYS[n + 1 + f + s]
  local charged = code == 1 and scope.pays and scope.limits > 0 and extra[2] + extra[4] > 0
  if scope.changed and not charged then store(KEYS[s], scope, text_of(scope), pad) end
  if charged then
    for k = 1, scope.limits do add(scope.values, k, extra[tonumber(ARGV[scope.at + 3 * k - 1])]) end
    store(KEYS[s], scope, text_of(scope), pad)
  end
  if scope.pays then
    local until_ = call('ZSCORE', leases, ARGV[6])
    if not until_ or tonumber(until_) <= now then scope.open = scope.open + 1 end
    call('ZADD', leases, lease_text, ARGV[6])
  end
  local at = 3 * s + 3
  reply[at], reply[at + 1], reply[at + 2] = scope.pays and 1 or 0, scope.open, text_of(scope)
end
if code < 2 then
  if code == 1 then
    t, o, dt, dout = min(t + extra[2], MAX), min(o + extra[4], MAX), min(dt + tokens, MAX), min(dout + tokens, MAX)
  end
  local known_for = tonumber(ARGV[4]) + tonumber(ARGV[5])
  call('SET', KEYS[n + 1], format('H %s %s %d %s %d %s %d %d %d %s %s', checked, lease_text, now + known_for, r, t, i, o, dt, dout, held, meta),
    'PX', format('%d', known_for + pad))
  call('ZADD', KEYS[#KEYS], lease_text, ARGV[6])
end
return reply
