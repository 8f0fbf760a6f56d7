-- ARGV: incarnation, then draws. A mark whose group is here stays.
local refusal = superseded(ARGV[1])
if refusal then
  return refusal
end
for i = 2, #ARGV do
  if redis.call('HEXISTS', PROMPTS, ARGV[i]) == 0 then
    redis.call('SETBIT', DONE, ARGV[i], 0)
  end
end
