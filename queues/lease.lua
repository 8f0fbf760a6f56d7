-- ARGV: owner, limit, now, deadline.
-- Returns {{lease, attempt, payload}, ...} and where `again` and `fresh` end, for a reader that waits for more.
local limit, now = tonumber(ARGV[2]), tonumber(ARGV[3])
open()
local leases = {}

local function deliver(stream, entry)
  local held = fields_of(stream, entry)
  local lease = lease_name(held.draw, stream, entry)
  redis.call('ZADD', LEASES, ARGV[4], lease)
  if now >= tonumber(held.not_after) then
    take_back(lease)
    finish(held.draw, held.attempt, 'cause', 'total_deadline')
  else
    leases[#leases + 1] = { lease, held.attempt, redis.call('HGET', PROMPTS, held.draw) }
  end
end

local function last_entry(stream)
  local info = redis.call('XINFO', 'STREAM', STREAMS[stream])
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then
      return info[i + 1]
    end
  end
end

for _, stream in ipairs(ORDER) do
  while #leases < limit do
    local reply = redis.call('XREADGROUP', 'GROUP', GROUP, ARGV[1], 'COUNT', limit - #leases, 'STREAMS', STREAMS[stream], '>')
    if not reply then
      break
    end
    for _, entry in ipairs(reply[1][2]) do
      deliver(stream, entry[1])
    end
  end
end
return { leases, last_entry('again'), last_entry('fresh') }
