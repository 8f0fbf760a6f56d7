-- ARGV: incarnation, now, max_attempts, total deadline, time before which commits are no longer sent again.
-- Returns the number of leases.
local refusal = superseded(ARGV[1])
if refusal then
  return refusal
end
local expired = redis.call('ZRANGEBYSCORE', LEASES, '-inf', ARGV[2])
for _, lease in ipairs(expired) do
  start_again(lease, tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]))
end
redis.call('ZREMRANGEBYSCORE', COMMITS, '-inf', ARGV[5])
return #expired
