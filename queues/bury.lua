-- ARGV: lease, reason. A prompt that no actor can decode: to the dead letters, and its draw fails.
if redis.call('ZSCORE', LEASES, ARGV[1]) then
  local held = take_back(ARGV[1])
  local payload = redis.call('HGET', PROMPTS, held.draw)
  redis.call('XADD', DEAD, 'MAXLEN', DEAD_LETTERS_KEPT, '*', 'draw', held.draw, 'reason', ARGV[2], 'payload', payload)
  finish(held.draw, held.attempt, 'cause', 'poison')
end
