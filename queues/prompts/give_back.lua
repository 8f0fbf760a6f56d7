-- ARGV: leases. What is no longer held is left alone.
for _, lease in ipairs(ARGV) do
  if redis.call('ZSCORE', LEASES, lease) then
    local held = take_back(lease)
    enqueue('again', held.draw, held.attempt, held.not_after)
  end
end
