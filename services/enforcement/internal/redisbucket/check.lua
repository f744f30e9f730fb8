-- One check: every limit of every scope, all or nothing, in one atomic step. A refused request changes no counter.
--
-- KEYS   n scopes' states, the reservation, f fences, n scopes' leases; all in one hash slot
-- ARGV   1 now in ms, or '' for Redis's own time   2 mode: check | dry | status   3 n   4 f   5 lease in ms   6 retention in ms
--        7 lease member   8..11 cost: requests, tokens, input tokens, output tokens   12 kinds of the scopes, joined by ,   13 meta
--        then f versions, then for each scope: slots, number of limits, and for each limit: id, what it counts (1..4), capacity, window in ms
-- Reply  {-1, fence, published version}: a fence is newer, nothing was done
--        {code, now, lease until, then for each scope: lag, open leases, and for each limit: consumed, credit, fast}
--        code 1 granted, 0 refused, 2 granted before: nothing charged again. Times in ms.
local now, pad = clock(ARGV[1])
local mode, n, f = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local got = redis.call('MGET', unpack(KEYS, 1, n + 1 + f))

for i = 1, f do
  local published = got[n + 1 + i]
  if published and tonumber(published) > tonumber(ARGV[13 + i]) then return {-1, i, tonumber(published)} end
end

local repeated
if mode == 'check' and got[n + 1] then
  local lease_until, known_until = string.match(got[n + 1], '^%a %d+ (%d+) (%d+)')
  if tonumber(known_until) > now then repeated = tonumber(lease_until) end
end

local fits, arg, scopes = true, 14 + f, {}
for s = 1, n do
  local slots, limits = tonumber(ARGV[arg]), tonumber(ARGV[arg + 1])
  local sc = {limits = limits, arg = arg + 2}
  sc.open = redis.call('ZCOUNT', KEYS[n + 1 + f + s], string.format('(%.0f', now), '+inf')
  if slots > 0 and sc.open >= slots then fits = false end
  sc.buckets, sc.ordered, sc.at, sc.lag, sc.changed = bring(got[s], now, sc.arg, limits)
  for i = 1, limits do
    local b = sc.ordered[i]
    if tonumber(ARGV[7 + tonumber(ARGV[sc.arg + 4 * i - 3])]) > b[3] - b[1] then fits = false end
  end
  scopes[s], arg = sc, sc.arg + 4 * limits
end

local granted = fits and mode == 'check' and not repeated
local lease_until = repeated or now + tonumber(ARGV[5])
local reply = {repeated and 2 or (fits and 1 or 0), now, lease_until}
for s = 1, n do
  local sc = scopes[s]
  if sc.changed and not granted then store(KEYS[s], sc.buckets, sc.at, sc.lag, pad) end
  if granted or (fits and mode == 'dry') then
    for i = 1, sc.limits do
      add(sc.ordered[i], tonumber(ARGV[7 + tonumber(ARGV[sc.arg + 4 * i - 3])]))
    end
    sc.open = sc.open + 1
  end
  if granted then
    local leases = KEYS[n + 1 + f + s]
    redis.call('ZREMRANGEBYSCORE', leases, '-inf', string.format('%.0f', now))
    redis.call('ZADD', leases, string.format('%.0f', lease_until), ARGV[7])
    redis.call('PEXPIRE', leases, 172800000) -- twice the longest lease: only what a crashed caller left goes this way
  end
  if granted and sc.limits > 0 then
    store(KEYS[s], sc.buckets, sc.at, sc.lag, pad)
  end
  reply[#reply + 1], reply[#reply + 2] = sc.lag, sc.open
  for i = 1, sc.limits do
    local b = sc.ordered[i]
    reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = b[1], b[2], b[4]
  end
end
if granted then
  local known_until = lease_until + tonumber(ARGV[6])
  redis.call('SET', KEYS[n + 1], string.format('H %.0f %.0f %.0f %s %s %s %s %s %s', now, lease_until, known_until,
    ARGV[8], ARGV[9], ARGV[10], ARGV[11], ARGV[12], ARGV[13]), 'PX', string.format('%.0f', known_until - now + pad))
end
return reply
