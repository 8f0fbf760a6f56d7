-- ARGV: now, deadline, then leases. Returns the leases that are lost.
local lost = {}
for i = 3, #ARGV do
  local deadline = redis.call('ZSCORE', LEASES, ARGV[i])
  if deadline and tonumber(deadline) > tonumber(ARGV[1]) then
    redis.call('ZADD', LEASES, ARGV[2], ARGV[i])
  else
    lost[#lost + 1] = ARGV[i]
  end
end
return lost
