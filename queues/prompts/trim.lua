-- ARGV: incarnation, then entry, draw of each result.
local refusal = superseded(ARGV[1])
if refusal then
  return refusal
end
for i = 2, #ARGV, 2 do
  if redis.call('XDEL', RESULTS, ARGV[i]) == 1 then
    redis.call('HDEL', PROMPTS, ARGV[i + 1])
  end
end
