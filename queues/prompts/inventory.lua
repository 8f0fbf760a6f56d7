-- ARGV: incarnation. Returns draw, place, draw, place, ... Results are read from their marks: their payloads are large.
local refusal = superseded(ARGV[1])
if refusal then
  return refusal
end
local places = {}

local function put(draw, place)
  places[#places + 1] = draw
  places[#places + 1] = place
end

for _, stream in ipairs(ORDER) do
  for _, entry in ipairs(redis.call('XRANGE', STREAMS[stream], '-', '+')) do
    local draw = entry[2][2]
    local leased = redis.call('ZSCORE', LEASES, lease_name(draw, stream, entry[1]))
    put(draw, leased and 'leased' or 'queued')
  end
end
for _, draw in ipairs(redis.call('HKEYS', PROMPTS)) do
  if redis.call('GETBIT', DONE, draw) == 1 then
    put(draw, 'results')
  end
end
return places
