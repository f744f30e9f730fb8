-- One check: every limit of every scope, all or nothing, in one atomic step. A refused request changes no counter.
--
-- KEYS   n scopes' states, the reservation, f fences, n scopes' leases, the index of ends; all in one hash slot
-- ARGV   1 now in ms, or '' for Redis's own time   2 mode: check | dry | status   3 n   4 f   5 lease in ms   6 retention in ms
--        7 lease member   8 what the reservation keeps: costs by kind, tokens and output tokens drawn, scopes, meta
--        then f versions, then for each scope: slots, number of limits, signature, and for each limit: capacity, window in ms, cost
-- Reply  {-1, fence, published version}: a fence is newer, nothing was done
--        {code, now, lease until, reserved requests, tokens, input tokens, output tokens (of a repeat; else 0), then for each scope: open
--        leases, state as text}
--        code 1 granted, 0 refused, 2 granted before: nothing charged again; its lease is 0 if it was settled. Times in ms.
local now, pad = clock(ARGV[1])
local mode, n, f = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local got = call('MGET', unpack(KEYS, 1, n + 1 + f))

for i = 1, f do
  local published = got[n + 1 + i]
  if published and tonumber(published) > tonumber(ARGV[8 + i]) then return {-1, i, tonumber(published)} end
end

local repeated
local reserved = {0, 0, 0, 0}
if mode == 'check' and got[n + 1] then
  local lease_until, known_until, r, t, i, o = match(got[n + 1], '^%a %d+ (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)')
  if tonumber(known_until) > now then
    repeated, reserved = tonumber(lease_until), {tonumber(r), tonumber(t), tonumber(i), tonumber(o)}
  end
end

local fits, arg, scopes, now_text = true, 9 + f, {}, format('%d', now)
for s = 1, n do
  local slots, limits = tonumber(ARGV[arg]), tonumber(ARGV[arg + 1])
  local scope = {limits = limits, sig = ARGV[arg + 2], at = arg + 3}
  scope.open = call('ZCOUNT', KEYS[n + 1 + f + s], '(' .. now_text, '+inf')
  if slots > 0 and scope.open >= slots then fits = false end
  bring(scope, got[s], now)
  arg = arg + 3
  for i = 1, limits do
    if tonumber(ARGV[arg + 2]) > tonumber(ARGV[arg]) - scope.values[2 * i - 1] then fits = false end
    arg = arg + 3
  end
  scopes[s] = scope
end

local granted = fits and mode == 'check' and not repeated
local lease_until = repeated or now + tonumber(ARGV[5])
local lease_text = format('%d', lease_until)
local reply = {repeated and 2 or (fits and 1 or 0), now, lease_until, reserved[1], reserved[2], reserved[3], reserved[4]}
for s = 1, n do
  local scope = scopes[s]
  if scope.changed and not granted then store(KEYS[s], scope, text_of(scope), pad) end
  if granted or (fits and mode == 'dry') then
    for i = 1, scope.limits do add(scope.values, i, tonumber(ARGV[scope.at + 3 * i - 1])) end
    scope.open = scope.open + 1
  end
  local text = text_of(scope)
  if granted then
    local leases = KEYS[n + 1 + f + s]
    call('ZREMRANGEBYSCORE', leases, '-inf', now_text)
    call('ZADD', leases, lease_text, ARGV[7])
    if scope.limits > 0 then store(KEYS[s], scope, text, pad) end
  end
  reply[6 + 2 * s], reply[7 + 2 * s] = scope.open, text
end
if granted then
  local known_for = tonumber(ARGV[5]) + tonumber(ARGV[6])
  call('ZADD', KEYS[#KEYS], lease_text, ARGV[7])
  call('SET', KEYS[n + 1], format('H %s %s %d %s', now_text, lease_text, now + known_for, ARGV[8]), 'PX', format('%d', known_for + pad))
end
return reply
