-- ARGV: now, then lease, draw, token of the call, result of each commit. Returns stored, late or duplicate for each.
local now = tonumber(ARGV[1])

local function commit(lease, draw, token, result)
  if redis.call('ZSCORE', COMMITS, token) then
    return 'stored'
  end
  local deadline = redis.call('ZSCORE', LEASES, lease)
  if deadline and tonumber(deadline) > now then
    local held = take_back(lease)
    finish(held.draw, held.attempt, 'result', result)
    redis.call('ZADD', COMMITS, now, token)
    return 'stored'
  end
  local refusal = redis.call('GETBIT', DONE, draw) == 1 and 'duplicate' or 'late'
  redis.call('HINCRBY', REFUSED, refusal, 1)
  return refusal
end

local outcomes = {}
for i = 2, #ARGV, 4 do
  outcomes[#outcomes + 1] = commit(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3])
end
return outcomes
