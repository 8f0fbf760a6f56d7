-- ARGV: now, then lease, draw, token of the call, owner, completion tokens, result of each commit.
-- Returns stored, late or duplicate for each.
local now = tonumber(ARGV[1])

local function commit(lease, draw, token, owner, num_tokens, result)
  if redis.call('ZSCORE', COMMITS, token) then
    return 'stored'
  end
  local deadline = redis.call('ZSCORE', LEASES, lease)
  if deadline and tonumber(deadline) > now then
    local held = take_back(lease)
    finish(held.draw, held.attempt, 'result', result)
    redis.call('ZADD', COMMITS, now, token)
    redis.call('HINCRBY', STORED, owner, num_tokens)
    return 'stored'
  end
  local refusal = redis.call('GETBIT', DONE, draw) == 1 and 'duplicate' or 'late'
  redis.call('HINCRBY', REFUSED, refusal, 1)
  return refusal
end

local outcomes = {}
for i = 2, #ARGV, 6 do
  outcomes[#outcomes + 1] = commit(unpack(ARGV, i, i + 5))
end
return outcomes
