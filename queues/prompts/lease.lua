-- ARGV: owner, limit, deadline, token of the call.
-- Returns {{lease, attempt, payload}, ...} and where `again` and `fresh` end, for a reader that waits for more.
local owner, limit, token = ARGV[1], tonumber(ARGV[2]), ARGV[4]
open()
local leases, handed = {}, { token }

local function hand(lease, held)
  leases[#leases + 1] = { lease, held.attempt, redis.call('HGET', PROMPTS, held.draw) }
  handed[#handed + 1] = lease
end

-- Hands out the leases of an earlier call with this token again: its answer was lost.
local function hand_again()
  local words = string.gmatch(redis.call('HGET', HANDED, owner) or '', '%S+')
  if words() ~= token then
    return
  end
  for lease in words do
    if redis.call('ZSCORE', LEASES, lease) then
      hand(lease, held_by(lease))
    end
  end
end

local function deliver(stream, entry)
  local held = fields_of(stream, entry)
  local lease = lease_name(held.draw, stream, entry)
  redis.call('ZADD', LEASES, ARGV[3], lease)
  hand(lease, held)
end

local function last_entry(stream)
  return value_of('last-generated-id', redis.call('XINFO', 'STREAM', STREAMS[stream]))
end

hand_again()
-- An actor declared dead gets no new leases. Its call may be older than that, delayed by a broken link.
local leaves = redis.call('HGET', CONTROL, owner) == 'drain'
for _, stream in ipairs(ORDER) do
  while #leases < limit and not leaves do
    local reply = redis.call('XREADGROUP', 'GROUP', GROUP, owner, 'COUNT', limit - #leases, 'STREAMS', STREAMS[stream], '>')
    if not reply then
      break
    end
    for _, entry in ipairs(reply[1][2]) do
      deliver(stream, entry[1])
    end
  end
end
if #leases > 0 then
  redis.call('HSET', HANDED, owner, table.concat(handed, ' '))
end
return { leases, last_entry('again'), last_entry('fresh') }
