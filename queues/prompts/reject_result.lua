-- ARGV: incarnation, result entry, reason. Copies a result that cannot be decoded to the dead letters.
local refusal = superseded(ARGV[1])
if refusal then
  return refusal
end
local found = redis.call('XRANGE', RESULTS, ARGV[2], ARGV[2])[1]
if found then
  put_aside(found[2][2], ARGV[3], found[2][6])
end
