-- ARGV: incarnation, result entry, reason. A result that cannot be decoded becomes a dead letter; it stays until it is trimmed.
local refusal = superseded(ARGV[1])
if refusal then
  return refusal
end
local found = redis.call('XRANGE', RESULTS, ARGV[2], ARGV[2])[1]
if found then
  put_aside(found[2][2], ARGV[3], found[2][6])
end
