-- Puts a scope's state where it has moved to, in place of what an earlier stay may have left there. Once: the mark tells. Nothing to put leaves
-- what is there: it has drained since, as what was carried away and back would have; or the store has lost its data, and it is newer.
--
-- KEYS   the mark, the state, in one hash slot
-- ARGV   1 now in ms, or ''   2 the state, '' for none   3 its time to live in ms   4 how long the mark stays, in ms
-- Reply  1 put, 0 it was put before
if not call('SET', KEYS[1], '1', 'NX', 'PX', ARGV[4]) then return 0 end
if ARGV[2] ~= '' then call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3] + pad) end
return 1
