-- ARGV: incarnation, now, max_attempts, owner. Returns how many leases it held.
local refusal = superseded(ARGV[1])
if refusal then
  return refusal
end
open()
redis.call('HDEL', HANDED, ARGV[4])
local released = 0
for _, stream in ipairs(ORDER) do
  for _, pending in ipairs(redis.call('XPENDING', STREAMS[stream], GROUP, '-', '+', redis.call('HLEN', PROMPTS), ARGV[4])) do
    local entry = pending[1]
    start_again(lease_name(fields_of(stream, entry).draw, stream, entry), tonumber(ARGV[2]), tonumber(ARGV[3]))
    released = released + 1
  end
  redis.call('XGROUP', 'DELCONSUMER', STREAMS[stream], GROUP, ARGV[4])
end
return released
