-- Freezes scopes that are about to move away, or to be shared out anew, and publishes the versions by which they do, so that no older quota grants
-- anything here any more. What is frozen stays until the next move: a move that was broken off goes on with the same.
--
-- KEYS   f fences, then for each scope: its state, the mark of the move in this shard; in one hash slot
-- ARGV   1 now in ms, or ''   2 f   3 how long a fence is published, in ms   4 where the scopes go, as bucket.lua has it   5 how long that is told, in ms;
--        then f versions
-- Reply  {now, then for each scope: 1 or 0, text}: 0 and the word that it has left, with its state; 1 and the state that it had before: the move has
--        been made here
local f = tonumber(ARGV[2])
for i = 1, f do
  local known = call('GET', KEYS[i])
  if not known or tonumber(known) < tonumber(ARGV[5 + i]) then call('SET', KEYS[i], ARGV[5 + i], 'PX', ARGV[3]) end
end
local reply = {now}
for k = f + 1, #KEYS, 2 do
  local text, made = call('GET', KEYS[k]), call('GET', KEYS[k + 1])
  if made then
    text = made
  elseif not text or sub(text, 1, 1) ~= '>' then
    text = '>' .. ARGV[4] .. ';' .. (text or '')
    call('SET', KEYS[k], text, 'PX', ARGV[5] + pad)
  end
  reply[#reply + 1], reply[#reply + 2] = made and 1 or 0, text
end
return reply
