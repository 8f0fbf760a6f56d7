-- ARGV: lease, reason. Moves a prompt that cannot be decoded to the dead letters; its draw fails.
if redis.call('ZSCORE', LEASES, ARGV[1]) then
  local held = take_back(ARGV[1])
  put_aside(held.draw, ARGV[2], redis.call('HGET', PROMPTS, held.draw))
  finish(held.draw, held.attempt, 'cause', 'poison')
end
