-- ARGV: lease, reason. A prompt that no actor can decode: to the dead letters, and its draw fails.
if redis.call('ZSCORE', LEASES, ARGV[1]) then
  local held = take_back(ARGV[1])
  put_aside(held.draw, ARGV[2], redis.call('HGET', PROMPTS, held.draw))
  finish(held.draw, held.attempt, 'cause', 'poison')
end
