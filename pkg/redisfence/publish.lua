-- redisfence/publish: leaves the version of a change where the check's script compares it, in one shard.
--
-- KEYS[1]  tg:{shard}:v:<name>
-- ARGV[1]  version, a decimal integer from 1 to 2^53-1 (exact in Lua's numbers)
-- ARGV[2]  time to live in milliseconds
-- returns  1 if the version is now in force, 0 if a newer one was there (which stays, with its own time to live)
--
-- Atomic; touches one key, so it runs in Redis Cluster. Repeating it changes nothing but the time to live.
local known = tonumber(redis.call('GET', KEYS[1]) or '')
if known and known > tonumber(ARGV[1]) then
  return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
