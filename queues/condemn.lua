-- ARGV: incarnation, result entry, reason. A result that the assembler cannot decode becomes a failure in its place.
local refusal = superseded(ARGV[1])
if refusal then
  return refusal
end
local found = redis.call('XRANGE', RESULTS, ARGV[2], ARGV[2])[1]
if found then
  redis.call('XADD', DEAD, 'MAXLEN', DEAD_LETTERS_KEPT, '*',
    'draw', found[2][2], 'reason', ARGV[3], 'payload', found[2][6])
end
