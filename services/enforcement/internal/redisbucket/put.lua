-- Puts scopes' states where they have moved to, in place of the word that was left there. Once: the mark tells, and keeps what was moved in all, so that
-- a move that was broken off goes on with the same.
--
-- KEYS   c fences of the plan, then for each scope: its state, the mark, the note that it was shared out; in one hash slot
-- ARGV   1 now in ms, or ''   2 c   3 how long a mark stays, in ms   4 the move, as bucket.lua has it, '' if it goes to one shard; then c versions, then for each scope: the state, '' for none, its time to live in ms,
--        the state of all shards together
-- Reply  {}: put, now or before   {fence, published version}: the payer has moved on, nothing was done
local c = tonumber(ARGV[2])
for i = 1, c do
  local published = call('GET', KEYS[i])
  if published and tonumber(published) > tonumber(ARGV[4 + i]) then return {i, tonumber(published)} end
end
local arg = 5 + c
for k = c + 1, #KEYS, 3 do
  if call('SET', KEYS[k + 1], ARGV[arg + 2], 'NX', 'PX', ARGV[3] + pad) then
    if ARGV[arg] == '' then
      call('DEL', KEYS[k])
    else
      call('SET', KEYS[k], ARGV[arg], 'PX', ARGV[arg + 1] + pad)
    end
    if ARGV[4] == '' then
      call('DEL', KEYS[k + 2])
    else
      call('SET', KEYS[k + 2], format('%d ', now) .. ARGV[4], 'PX', ARGV[3] + pad)
    end
  end
  arg = arg + 3
end
return {}
