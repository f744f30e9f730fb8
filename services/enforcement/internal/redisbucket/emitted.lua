-- Notes that a settled reservation's event is durable: drops the metas that were kept to emit it again, and forgets the reservation after
-- its tombstone.
--
-- KEYS   the reservation
-- ARGV   1 now in ms, or ''   2 tombstone in ms
-- Reply  1 noted, 0 there is no settled reservation, or it was noted before
local text = call('GET', KEYS[1])
if not text then return 0 end
local checked_at, tail = match(text, '^S (%d+) %d+ %d+( %d+ %d+ %d+ %d+ %d+ %d+ %-) ')
if not checked_at then return 0 end
local tombstone = tonumber(ARGV[2])
call('SET', KEYS[1], format('E %s 0 %d%s 0 ', checked_at, now + tombstone, tail), 'PX', format('%d', tombstone + pad))
return 1
