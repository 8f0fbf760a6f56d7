-- ARGV: incarnation, then draws. Keeps the mark of a draw that is still live.
local refusal = superseded(ARGV[1])
if refusal then
  return refusal
end
for i = 2, #ARGV do
  if redis.call('HEXISTS', PROMPTS, ARGV[i]) == 0 then
    redis.call('SETBIT', DONE, ARGV[i], 0)
  end
end
