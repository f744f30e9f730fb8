-- Rewrites the word that a scope has left, unless somebody else has done so.
--
-- KEYS   the scope's state
-- ARGV   1 now in ms, or ''   2 the word as it was   3 as it is to be   4 how long that is told, in ms
-- Reply  1 rewritten, 0 it was another
if call('GET', KEYS[1]) ~= ARGV[2] then return 0 end
call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4] + pad)
return 1
