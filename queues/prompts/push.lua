-- ARGV: incarnation, bound, lane, then draw, attempt, payload of each prompt. All or none. The bound is for first
-- attempts only: later attempts had their place before.
local refusal = superseded(ARGV[1])
if refusal then
  return refusal
end
local new, seen, first = {}, {}, 0
for i = 4, #ARGV, 3 do
  local draw = ARGV[i]
  local known = redis.call('HEXISTS', PROMPTS, draw) == 1 or redis.call('GETBIT', DONE, draw) == 1
  if not known and not seen[draw] then
    seen[draw] = true
    new[#new + 1] = i
    first = first + (tonumber(ARGV[i + 1]) == 1 and 1 or 0)
  end
end
local live = redis.call('HLEN', PROMPTS)
if first > 0 and live + #new > tonumber(ARGV[2]) then
  return redis.error_reply('FULL ' .. live .. ' draws are live, ' .. #new .. ' more would pass the bound of ' .. ARGV[2])
end
redis.call('SADD', LANES, ARGV[3])
open()
for _, i in ipairs(new) do
  redis.call('HSET', PROMPTS, ARGV[i], ARGV[i + 2])
  enqueue(tonumber(ARGV[i + 1]) > 1 and 'again' or 'fresh', ARGV[i], ARGV[i + 1], 'inf')
end
