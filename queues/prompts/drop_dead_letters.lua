-- ARGV: incarnation, then draws. Their dead letters are no longer needed.
local refusal = superseded(ARGV[1])
if refusal then
  return refusal
end
local dropped = {}
for i = 2, #ARGV do
  dropped[ARGV[i]] = true
end
for _, letter in ipairs(redis.call('XRANGE', DEAD, '-', '+')) do
  if dropped[letter[2][2]] then
    redis.call('XDEL', DEAD, letter[1])
  end
end
