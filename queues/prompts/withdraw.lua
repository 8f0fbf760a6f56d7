-- ARGV: incarnation, then draws. Removes those that are queued or leased.
local refusal = superseded(ARGV[1])
if refusal then
  return refusal
end
local unwanted = {}
for i = 2, #ARGV do
  unwanted[ARGV[i]] = true
end
for _, stream in ipairs(ORDER) do
  for _, entry in ipairs(redis.call('XRANGE', STREAMS[stream], '-', '+')) do
    local draw = entry[2][2]
    if unwanted[draw] then
      redis.call('ZREM', LEASES, lease_name(draw, stream, entry[1]))
      redis.call('XACK', STREAMS[stream], GROUP, entry[1])
      redis.call('XDEL', STREAMS[stream], entry[1])
      redis.call('HDEL', PROMPTS, draw)
    end
  end
end
