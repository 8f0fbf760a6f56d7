-- The keys of one lane of one run, and the moves that several scripts share. Every script begins with this text.
--
-- All keys start with olmorl:{RUN}: and the braces make RUN the one hash tag, so that a run lives in one slot.
--
--   claim          hash    incarnation, token: who owns the orchestrator's end
--   lanes          set     names of the lanes that ever held a draw
--   control        hash    owner, or `*` for all -> command
--   stored         hash    owner -> tokens of its stored results, in all lanes
--   LANE:prompts   hash    draw -> encoded Prompt, for every live draw: queued, leased, or among the results
--   LANE:again     stream  draw, attempt, not_after (when a lost attempt is its last): leased before `fresh`
--   LANE:fresh     stream  the same, for first attempts; group `actors` in both, its pending entries are the leases
--   LANE:leases    zset    lease -> deadline; a lease is DRAW/STREAM/ENTRY, so every delivery has its own name
--   LANE:handed    hash    owner -> token and leases of its last answered lease call: a repeated call gets them again
--   LANE:done      bitmap  one bit a draw, set by its result until `flush` or `forget_done`: 12 KiB for 100,000 draws
--   LANE:results   stream  draw, attempt, and `result` (encoded) or `cause`; trimmed when durable elsewhere
--   LANE:commits   zset    token of a commit call -> time: a repeated call gets the same answer
--   LANE:refused   hash    late, duplicate: commits refused so far
--   LANE:dead      stream  draw, reason, payload: not decodable, or attempted too often or for too long; capped

local CLAIM, LANES, CONTROL, STORED, PROMPTS, AGAIN, FRESH, LEASES, HANDED, DONE, RESULTS, COMMITS, REFUSED, DEAD =
  unpack(KEYS)
local STREAMS = { again = AGAIN, fresh = FRESH }
local ORDER = { 'again', 'fresh' }
local GROUP = 'actors'
local DEAD_LETTERS_KEPT = 1000

-- A claim older than the caller's does not refuse it: a fail-over may have lost the caller's own claim.
local function superseded(incarnation)
  local owner = redis.call('HGET', CLAIM, 'incarnation') or '0'
  if tonumber(owner) > tonumber(incarnation) then
    return redis.error_reply('SUPERSEDED incarnation ' .. incarnation .. ' is superseded by incarnation ' .. owner)
  end
end

local function open()
  for _, stream in ipairs(ORDER) do
    if redis.call('EXISTS', STREAMS[stream]) == 0 then
      redis.call('XGROUP', 'CREATE', STREAMS[stream], GROUP, '0', 'MKSTREAM')
    end
  end
end

local function enqueue(stream, draw, attempt, not_after)
  redis.call('XADD', STREAMS[stream], '*', 'draw', draw, 'attempt', attempt, 'not_after', not_after)
end

local function fields_of(stream, entry)
  local fields = redis.call('XRANGE', STREAMS[stream], entry, entry)[1][2]
  return { draw = fields[2], attempt = tonumber(fields[4]), not_after = fields[6] }
end

local function value_of(name, fields)
  for i = 1, #fields, 2 do
    if fields[i] == name then
      return fields[i + 1]
    end
  end
end

local function lease_name(draw, stream, entry)
  return draw .. '/' .. stream .. '/' .. entry
end

local function parts_of(lease)
  local _, stream, entry = string.match(lease, '^(%d+)/(%a+)/(.+)$')
  return stream, entry
end

local function held_by(lease)
  return fields_of(parts_of(lease))
end

local function take_back(lease)
  local stream, entry = parts_of(lease)
  local held = fields_of(stream, entry)
  redis.call('ZREM', LEASES, lease)
  redis.call('XACK', STREAMS[stream], GROUP, entry)
  redis.call('XDEL', STREAMS[stream], entry)
  return held
end

local function finish(draw, attempt, kind, value)
  redis.call('XADD', RESULTS, '*', 'draw', draw, 'attempt', attempt, kind, value)
  redis.call('SETBIT', DONE, draw, 1)
end

local function put_aside(draw, reason, payload)
  redis.call('XADD', DEAD, 'MAXLEN', DEAD_LETTERS_KEPT, '*', 'draw', draw, 'reason', reason, 'payload', payload or '')
end

-- The total deadline begins with the first lost attempt: time in the queue before it does not count.
local function start_again(lease, now, max_attempts, total_deadline)
  local held = take_back(lease)
  if held.attempt >= max_attempts then
    put_aside(held.draw, 'none of its ' .. held.attempt .. ' attempts ended with a commit',
      redis.call('HGET', PROMPTS, held.draw))
    finish(held.draw, held.attempt, 'cause', 'attempts')
  elseif now >= tonumber(held.not_after) then
    put_aside(held.draw, 'lost once more after the total deadline', redis.call('HGET', PROMPTS, held.draw))
    finish(held.draw, held.attempt, 'cause', 'total_deadline')
  else
    enqueue('again', held.draw, held.attempt + 1, math.min(tonumber(held.not_after), now + total_deadline))
  end
end
