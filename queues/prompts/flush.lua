-- ARGV: incarnation. Empties the streams and keeps them: so entries, and with them leases, never repeat a name.
local refusal = superseded(ARGV[1])
if refusal then
  return refusal
end
open()
for _, stream in ipairs(ORDER) do
  redis.call('XTRIM', STREAMS[stream], 'MAXLEN', 0)
  redis.call('XGROUP', 'DESTROY', STREAMS[stream], GROUP)
  redis.call('XGROUP', 'CREATE', STREAMS[stream], GROUP, '$')
end
redis.call('XTRIM', RESULTS, 'MAXLEN', 0)
redis.call('UNLINK', PROMPTS, LEASES, HANDED, DONE, COMMITS)
