-- ARGV: incarnation. Returns the draws that no actor holds, as one text: there may be many thousands.
local refusal = superseded(ARGV[1])
if refusal then
  return refusal
end
local draws = {}
for _, stream in ipairs(ORDER) do
  if redis.call('EXISTS', STREAMS[stream]) == 1 then
    local delivered = value_of('last-delivered-id', redis.call('XINFO', 'GROUPS', STREAMS[stream])[1])
    for _, entry in ipairs(redis.call('XRANGE', STREAMS[stream], '(' .. delivered, '+')) do
      draws[#draws + 1] = entry[2][2]
    end
  end
end
return table.concat(draws, ' ')
