-- Gives what must be emitted among some of a shard's reservations: those whose lease has ended, which are settled by this call with what they
-- hold, and settled ones whose event is not known to be durable. Each is offered again after the grace, until emitted.lua takes it away.
-- All of them are looked at, in steps: they are the requests in flight, not those of the past.
--
-- KEYS   the shard's reservations
-- ARGV   1 now in ms, or ''   2 cursor, 0 to begin   3 how many to look at   4 grace in ms   5 retention in ms   6 meta of those that expire
-- Reply  {now, the next cursor, 0 at the end, then for each: field, checked at (0: unknown), reserved requests, tokens, input tokens,
--        output tokens, meta of the check, meta of the settle}
local step = call('HSCAN', KEYS[1], ARGV[2], 'COUNT', ARGV[3])
local reply, entries = {now, tonumber(step[1])}, step[2]
for e = 1, #entries, 2 do
  local field, text = entries[e], entries[e + 1]
  local state, at, due, known_until, r, t, i, o, rest = match(text, '^(%a) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) %d+ %d+ %S+ (.*)$')
  if tonumber(known_until) <= (state == 'H' and now - due or now) then
    call('HDEL', KEYS[1], field)
  elseif tonumber(due) <= now then
    local check_meta, meta = rest, ARGV[6]
    if state == 'S' then
      local length, both = match(rest, '^(%d+) (.*)$')
      check_meta, meta = sub(both, 1, tonumber(length)), sub(both, tonumber(length) + 1)
      local head, tail = match(text, '^(S %d+) %d+( .*)$')
      text = head .. format(' %d', now + ARGV[4]) .. tail
    else
      text = settled(at, now + ARGV[4], ARGV[5], r, t, i, o, check_meta, meta)
    end
    call('HSET', KEYS[1], field, text)
    for _, v in ipairs({field, tonumber(at), tonumber(r), tonumber(t), tonumber(i), tonumber(o), check_meta, meta}) do reply[#reply + 1] = v end
  end
end
return reply
