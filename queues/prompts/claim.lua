-- ARGV: incarnation, token. The token lets a claim whose answer was lost be sent again.
local incarnation = tonumber(redis.call('HGET', CLAIM, 'incarnation') or '0')
local again = redis.call('HGET', CLAIM, 'token') == ARGV[2]
if tonumber(ARGV[1]) <= incarnation and not again then
  return redis.error_reply('SUPERSEDED incarnation ' .. ARGV[1] .. ' by incarnation ' .. incarnation)
end
redis.call('HSET', CLAIM, 'incarnation', ARGV[1], 'token', ARGV[2])
