-- ARGV: incarnation, now, max_attempts, total deadline, owner. Returns the number of its leases.
local refusal = superseded(ARGV[1])
if refusal then
  return refusal
end
open()
redis.call('HDEL', HANDED, ARGV[5])
local released = 0
for _, stream in ipairs(ORDER) do
  for _, pending in ipairs(redis.call('XPENDING', STREAMS[stream], GROUP, '-', '+', redis.call('HLEN', PROMPTS), ARGV[5])) do
    local entry = pending[1]
    local lease = lease_name(fields_of(stream, entry).draw, stream, entry)
    start_again(lease, tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]))
    released = released + 1
  end
  redis.call('XGROUP', 'DELCONSUMER', STREAMS[stream], GROUP, ARGV[5])
end
return released
