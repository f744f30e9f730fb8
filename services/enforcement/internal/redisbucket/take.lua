-- Freezes scopes that are about to move away, or to be shared out anew: word is left in place of each that has anything, or of all. Publishes the versions by
-- which they move, so that no older quota grants anything here any more. Doing it again finds the same.
--
-- KEYS   c fences of the plan, f fences of its moves, then for each scope: its state, the mark of the move in this shard; in one hash slot
-- ARGV   1 now in ms, or ''   2 c   3 f   4 how long a fence is published, in ms   5 the move, as bucket.lua has it   6 how long word is kept, in ms
--        7 1: word is left where nothing is, too; then c and f versions
-- Reply  {-1, fence, published version}: the payer has moved on, nothing was done
--        {now, then for each scope: text}: the word that it has left; '': it has nothing, or the move has been made here
local bring, _, leases = library()
local c, f = tonumber(ARGV[2]), tonumber(ARGV[3])
for i = 1, c + f do
  local published, version = call('GET', KEYS[i]), ARGV[7 + i]
  if i > c then
    if not published or tonumber(published) < tonumber(version) then call('SET', KEYS[i], version, 'PX', ARGV[4]) end
  elseif published and tonumber(published) > tonumber(version) then
    return {-1, i, tonumber(published)}
  end
end

local function empty(text)
  local scope = bring(-1, 0, text, true)
  leases(scope)
  return scope.open == 0 and max(0, unpack(scope.values)) == 0
end
local reply, got = {now}, call('MGET', unpack(KEYS, c + f + 1))
for k = 1, #got, 2 do
  local key, text = KEYS[c + f + k], ''
  if not got[k + 1] then
    text = got[k] or ''
    local to, rest = match(text, '^>([^;]*)(;.*)$')
    if to then
      text = '>' .. ARGV[5] .. rest
    else
      if text ~= '' and empty(text) then
        text = ''
        call('DEL', key)
      end
      if text ~= '' or ARGV[7] == '1' then text = '>' .. ARGV[5] .. ';' .. ARGV[5] .. ';' .. text end
    end
    if text ~= '' and to ~= ARGV[5] then call('SET', key, text, 'PX', ARGV[6] + pad) end
  end
  reply[#reply + 1] = text
end
return reply
