-- Returns queued, leased, results, late, duplicate.
local leased = redis.call('ZCARD', LEASES)
local refused = redis.call('HMGET', REFUSED, 'late', 'duplicate')
return {
  redis.call('XLEN', AGAIN) + redis.call('XLEN', FRESH) - leased,
  leased,
  redis.call('XLEN', RESULTS),
  tonumber(refused[1] or 0),
  tonumber(refused[2] or 0),
}
