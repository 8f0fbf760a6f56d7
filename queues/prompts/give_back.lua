-- ARGV: leases. Ignores leases that are no longer held.
for _, lease in ipairs(ARGV) do
  if redis.call('ZSCORE', LEASES, lease) then
    local held = take_back(lease)
    enqueue('again', held.draw, held.attempt, held.not_after)
  end
end
