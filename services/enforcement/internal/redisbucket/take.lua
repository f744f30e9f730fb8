-- Reads scopes that are about to move away, once no older quota can change them any more.
--
-- KEYS   the fence, n scopes' states, in one hash slot
-- ARGV   1 now in ms, or ''   2 version of the fence   3 how long it is published, in ms
-- Reply  {now, then each state as text, or ''}
local known = call('GET', KEYS[1])
if not known or tonumber(known) < tonumber(ARGV[2]) then call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) end
local got, reply = call('MGET', unpack(KEYS, 2)), {now}
for i = 1, #KEYS - 1 do reply[1 + i] = got[i] or '' end
return reply
