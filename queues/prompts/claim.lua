-- ARGV: incarnation, token. With the same token a claim can be sent again after a lost answer.
local incarnation = tonumber(redis.call('HGET', CLAIM, 'incarnation') or '0')
local again = redis.call('HGET', CLAIM, 'token') == ARGV[2]
if tonumber(ARGV[1]) <= incarnation and not again then
  return redis.error_reply('SUPERSEDED incarnation ' .. ARGV[1] .. ' is superseded by incarnation ' .. incarnation)
end
redis.call('HSET', CLAIM, 'incarnation', ARGV[1], 'token', ARGV[2])
