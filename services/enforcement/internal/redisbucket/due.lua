-- Gives what must be emitted: reservations whose lease has ended, which are settled by this call with what they hold, and settled ones whose
-- event is not known to be durable. Each is offered again after the grace, until its event is noted as durable.
--
-- KEYS   the index of ends; its lists and the reservations are found by the prefix, in the same hash slot
-- ARGV   1 now in ms, or ''   2 key prefix   3 how many at most   4 grace in ms   5 retention in ms   6 meta of those that expire
-- Reply  {now, 1 if it stopped for having looked at enough, then for each: member, checked at (0: unknown), reserved requests, tokens, input
--        tokens, output tokens, meta of the check, meta of the settle}
local reply, most, looks = {now, 0}, tonumber(ARGV[3]), 1000

-- Takes one entry of a list: it counts if the reservation is due at the time of the list, and not at another.
local function take(member, slot)
  local key = ARGV[2] .. 'r:' .. member
  local text = call('GET', key)
  if not text then return end
  local state, at, due, known_until, r, t, i, o, rest = match(text, '^(%a) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) %d+ %d+ %S+ (.*)$')
  if state == 'E' or tonumber(known_until) <= now or floor((due + 4999) / 5000) ~= slot then return end
  local check_meta, meta = rest, ARGV[6]
  if state == 'S' then
    local length, both = match(rest, '^(%d+) (.*)$')
    check_meta, meta = sub(both, 1, tonumber(length)), sub(both, tonumber(length) + 1)
  end
  local again = floor((now + ARGV[4] + 4999) / 5000) * 5000
  local reserved = {tonumber(r), tonumber(t), tonumber(i), tonumber(o)}
  if state == 'H' then
    keep_settled(key, tonumber(at), again, tonumber(ARGV[5]), reserved, check_meta, meta)
  else
    local head, tail = match(text, '^(S %d+) %d+( .*)$')
    call('SET', key, head .. ' ' .. again .. tail, 'PX', call('PTTL', key))
  end
  if again ~= slot * 5000 then note_due(KEYS[1], again, member) end
  for _, v in ipairs({member, tonumber(at), reserved[1], reserved[2], reserved[3], reserved[4], check_meta, meta}) do reply[#reply + 1] = v end
  most = most - 1
end

while most > 0 do
  local slot = call('ZRANGEBYSCORE', KEYS[1], '-inf', format('%d', floor(now / 5000)), 'LIMIT', 0, 1)[1]
  if not slot then break end
  local member = call('LPOP', KEYS[1] .. ':' .. slot)
  if member then
    take(member, tonumber(slot))
    looks = looks - 1
    if looks == 0 then
      reply[2] = 1
      break
    end
  else
    call('ZREM', KEYS[1], slot)
  end
end
return reply
