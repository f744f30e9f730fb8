-- Notes that a settled reservation's event is durable: it leaves the shard's reservations, and a tombstone stays for a while.
--
-- KEYS   the tombstone, the shard's reservations
-- ARGV   1 now in ms, or ''   2 tombstone in ms   3 the request's field
-- Reply  1 noted, 0 there is no settled reservation, or it was noted before
local text = call('HGET', KEYS[2], ARGV[3])
if not text then return 0 end
local checked_at, tail = match(text, '^S (%d+) %d+ %d+( %d+ %d+ %d+ %d+ %d+ %d+ %-) ')
if not checked_at then return 0 end
local tombstone = tonumber(ARGV[2])
call('SET', KEYS[1], format('E %s 0 %d%s 0 ', checked_at, now + tombstone, tail), 'PX', format('%d', tombstone + pad))
call('HDEL', KEYS[2], ARGV[3])
return 1
