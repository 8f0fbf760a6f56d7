-- ARGV: lease, draw, now, token of the call, result. Returns stored, late or duplicate.
local lease, draw, now, token = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
if redis.call('ZSCORE', COMMITS, token) then
  return 'stored'
end
local deadline = redis.call('ZSCORE', LEASES, lease)
if deadline and tonumber(deadline) > now then
  local held = take_back(lease)
  finish(held.draw, held.attempt, 'result', ARGV[5])
  redis.call('ZADD', COMMITS, ARGV[3], token)
  return 'stored'
end
local refusal = redis.call('GETBIT', DONE, draw) == 1 and 'duplicate' or 'late'
redis.call('HINCRBY', REFUSED, refusal, 1)
return refusal
