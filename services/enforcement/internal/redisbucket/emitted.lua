-- Notes that a settled reservation's event is durable: drops the metas that were kept to emit it again, and forgets the reservation after
-- its tombstone.
--
-- KEYS   the reservation, the index of ends
-- ARGV   1 now in ms, or ''   2 tombstone in ms   3 lease member
-- Reply  1 noted, 0 there is no settled reservation, or it was noted before
local now, pad = clock(ARGV[1])
local text = call('GET', KEYS[1])
if not text then return 0 end
local head, tail = match(text, '^S (%d+ %d+) %d+( %d+ %d+ %d+ %d+ %d+ %d+ %-) ')
if not head then return 0 end
local tombstone = tonumber(ARGV[2])
call('SET', KEYS[1], format('E %s %d%s 0 ', head, now + tombstone, tail), 'PX', format('%d', tombstone + pad))
call('ZREM', KEYS[2], ARGV[3])
return 1
