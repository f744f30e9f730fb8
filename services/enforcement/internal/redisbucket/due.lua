-- Gives what must be emitted: reservations whose lease has ended, which are settled by this call with what they hold, and settled ones whose
-- event is not known to be durable. Each is offered again after the grace, until emitted.lua takes it off the index.
--
-- KEYS   the index of ends; reservations and leases are found by the prefix, in the same hash slot
-- ARGV   1 now in ms, or ''   2 key prefix   3 how many at most   4 grace in ms   5 retention in ms   6 meta of those that expire
-- Reply  {now, then for each: lease member, checked at (0: unknown), reserved requests, tokens, input tokens, output tokens, meta of the
--        check, meta of the settle}
local now, pad = clock(ARGV[1])
local reply, most = {now}, tonumber(ARGV[3])

-- Takes one member of the index: off it if nothing is to be emitted, else into the reply.
local function take(member)
  local key = ARGV[2] .. 'r:' .. member
  local text = call('GET', key)
  local state, at, known_until, r, t, i, o, held, rest
  if text then
    state, at, known_until, r, t, i, o, held, rest = match(text, '^(%a) (%d+) %d+ (%d+) (%d+) (%d+) (%d+) (%d+) %d+ %d+ (%S+) (.*)$')
  end
  if not text or state == 'E' or tonumber(known_until) <= now then
    call('ZREM', KEYS[1], member)
  else
    local check_meta, meta = rest, ARGV[6]
    if state == 'H' then
      for scope in string.gmatch(held, '=([^,]+)') do call('ZREM', ARGV[2] .. 'l:' .. scope, member) end
      keep_settled(key, tonumber(at), now, tonumber(ARGV[5]), pad, {tonumber(r), tonumber(t), tonumber(i), tonumber(o)}, check_meta, meta)
    else
      local length, both = match(rest, '^(%d+) (.*)$')
      check_meta, meta = string.sub(both, 1, tonumber(length)), string.sub(both, tonumber(length) + 1)
    end
    call('ZADD', KEYS[1], format('%d', now + tonumber(ARGV[4])), member)
    for _, v in ipairs({member, tonumber(at), tonumber(r), tonumber(t), tonumber(i), tonumber(o), check_meta, meta}) do reply[#reply + 1] = v end
    most = most - 1
  end
end

while most > 0 do
  local members = call('ZRANGEBYSCORE', KEYS[1], '-inf', format('%d', now), 'LIMIT', 0, most)
  if #members == 0 then break end
  for _, member in ipairs(members) do take(member) end
end
return reply
