-- Puts scopes' states where they have moved to, in place of what was frozen there. Once: the mark tells, and keeps what was frozen.
--
-- KEYS   f fences, then for each scope: its state, the mark; in one hash slot
-- ARGV   1 now in ms, or ''   2 f   3 how long a mark stays, in ms; then f versions, then for each scope: the state, '' for none, its time to live in ms
-- Reply  {}: put, now or before   {fence, published version}: the payer has moved on, nothing was done
local f = tonumber(ARGV[2])
for i = 1, f do
  local published = call('GET', KEYS[i])
  if published and tonumber(published) > tonumber(ARGV[3 + i]) then return {i, tonumber(published)} end
end
local arg = 4 + f
for k = f + 1, #KEYS, 2 do
  if call('EXISTS', KEYS[k + 1]) == 0 then
    local text = call('GET', KEYS[k])
    call('SET', KEYS[k + 1], text and match(text, '^>[^;]*;(.*)$') or '', 'PX', ARGV[3] + pad)
    if ARGV[arg] == '' then
      call('DEL', KEYS[k])
    else
      call('SET', KEYS[k], ARGV[arg], 'PX', ARGV[arg + 1] + pad)
    end
  end
  arg = arg + 2
end
return {}
