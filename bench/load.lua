-- The load of small requests. Arguments (after "--"), as name=value:
--   host     the Host header, as it was signed
--   threads  how many wrk threads share the files
--   gets, puts   files of presigned paths, one a line, all lines equally long
--   method   what the paths of gets are asked with (GET, HEAD)
--   share    of ten requests, how many are PUTs
--   size     bytes of a PUT's body;  pool  file of random bytes that bodies are cut from
--   run      text no other run has: it makes bodies unique
--   stop     end after so many answers
--   pause    milliseconds between an answer and the connection's next request
local threads = {}

function setup(thread)
  thread:set("id", #threads)
  table.insert(threads, thread)
end

local function slurp(name)
  local file = assert(io.open(name, "rb"))
  local text = file:read("*a")
  file:close()
  return text
end

local function reader(name, stride)  -- returns a function giving the next path, and starts over at the end
  local text = slurp(name)
  local width = text:find("\n", 1, true)
  local count = #text / width
  local at = id
  return function()
    if at >= count then
      at = id
      wrapped = wrapped + 1
    end
    local path = text:sub(at * width + 1, at * width + width - 1)
    at = at + stride
    return path
  end
end

function init(args)
  local options = { threads = "1", method = "GET", share = "0", size = "0", stop = "0", pause = "0", run = "" }
  for _, word in ipairs(args) do
    local name, value = word:match("^(%w+)=(.*)$")
    if name then options[name] = value end
  end
  local stride, share, size = tonumber(options.threads), tonumber(options.share), tonumber(options.size)
  local host, method, made = options.host, options.method, 0
  wrapped = 0
  math.randomseed(os.time() + id)
  local pool = options.pool and slurp(options.pool)
  local gets = options.gets and reader(options.gets, stride)
  local puts = options.puts and reader(options.puts, stride)
  local get_tail = " HTTP/1.1\r\nHost: " .. host .. "\r\n\r\n"
  local put_tail = " HTTP/1.1\r\nHost: " .. host .. "\r\nContent-Length: " .. size .. "\r\n\r\n"

  local function body()
    if size == 0 then return "" end
    local mark = string.format("%s-%x-%x-", options.run, id, made):sub(1, size)
    local at = math.random(1, #pool - size)
    return mark .. pool:sub(at, at + size - #mark - 1)
  end

  function request()
    made = made + 1
    if (made * 3) % 10 < share then return "PUT " .. puts() .. put_tail .. body() end
    return method .. " " .. gets() .. get_tail
  end

  local stop, answers = tonumber(options.stop), 0
  if stop > 0 then
    function response()
      answers = answers + 1
      if answers == stop then
        wrk.thread:stop()
        io.stderr:write("FULL\n")  -- wrk itself sleeps until its time is over: whoever started it ends that
      end
    end
  end

  local pause = tonumber(options.pause)
  if pause > 0 then
    function delay() return pause end
  end
end

function done(summary, latency, _)
  local around = 0
  for _, thread in ipairs(threads) do around = around + thread:get("wrapped") end
  local e = summary.errors
  io.write(string.format(
    "\nBENCH requests=%d microseconds=%d bytes=%d status=%d connect=%d read=%d write=%d timeout=%d p50=%d p99=%d " ..
    "max=%d wrapped=%d\n",
    summary.requests, summary.duration, summary.bytes, e.status, e.connect, e.read, e.write, e.timeout,
    latency:percentile(50), latency:percentile(99), latency.max, around))
end
