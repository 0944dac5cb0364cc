-- One call of a store, all or nothing, once. `main` is called with:
--
-- KEYS: [1] the guard's key (or ''), then the key of each step.
-- ARGV: [1] flags: 1 = wait when refused, 2 = was sent before; [2] lane of the caller, '' when the call only reads;
--       [3] number of the call, 16 digits; [4..] guard, then steps (see redis/script.rs).
-- Answer: what came of it as crate::codec writes it, or 'W' when the caller waits.
--
-- Redis cannot take back what a script has written, so what may refuse is looked at before anything is changed. Only
-- where a step compares what an earlier step of the same call changed, values are kept and put back.

local WAITING = 'trellis:waiting' -- lane -> its call, number and keys it waits for
local WATCHED = 'trellis:watched' -- key -> lanes that wait for it, oldest first
local KEEP = 600 -- seconds for which the answer of a lane's last call is kept
local call -- set when a call begins: a library has none while it is loaded

local function u32(number) return struct.pack('<I4', number) end
local function u64(number) return struct.pack('<I4I4', number % 4294967296, math.floor(number / 4294967296)) end
local function optional(bytes)
  if bytes then return u32(#bytes) .. bytes end
  return '\255\255\255\255'
end

local function range(key, offset, length)
  if length == 0 then return '' end
  local bytes = call('GETRANGE', key, offset, offset + length - 1)
  if #bytes < length then bytes = bytes .. string.rep('\0', length - #bytes) end
  return bytes
end

-- Expectations: 'A' | 'V' bytes | 'R' offset bytes. Returns whether it holds, and where the arguments go on.
local function holds(key, argv, p)
  local kind = argv[p]
  if kind == 'A' then return call('EXISTS', key) == 0, p + 1 end
  if kind == 'V' then return call('GET', key) == argv[p + 1], p + 2 end
  return range(key, tonumber(argv[p + 1]), #argv[p + 2]) == argv[p + 2], p + 3
end

local EXPECT = { A = 1, V = 2, R = 3 }
local ARGUMENTS = { G = 1, g = 3, P = 2, p = 3, D = 1, X = 1, A = 2, E = 3, T = 2 }

-- Where the arguments of the next step begin.
local function next_step(argv, p)
  local letter = argv[p]
  if letter == 'C' then
    p = p + 1 + EXPECT[argv[p + 1]]
    return p + ARGUMENTS[argv[p]]
  end
  if letter == 'N' then return p + (argv[p + 5] == '1' and 10 or 6) end
  return p + ARGUMENTS[letter]
end

-- The number at a place: its halves (unsigned), before and after an addition; whether the bounds allow it.
local function sum(key, argv, p)
  local offset, width = tonumber(argv[p + 1]), tonumber(argv[p + 2])
  local add_low, add_high = tonumber(argv[p + 3]), tonumber(argv[p + 4])
  local found = range(key, offset, width)
  local modulus = width == 8 and 4294967296 or 256 ^ width
  -- Sign-extended to eight bytes.
  local low, high
  if width == 8 then
    low, high = struct.unpack('<I4I4', found)
  else
    low, high = struct.unpack('<I' .. width, found), 0
    if low >= modulus / 2 then low, high = low - modulus + 4294967296, 4294967295 end
  end
  local after_low, after_high = low + add_low, high + add_high
  if after_low >= 4294967296 then after_low, after_high = after_low - 4294967296, after_high + 1 end
  after_high = after_high % 4294967296
  if width < 8 then
    after_low = after_low % modulus
    after_high = 0
    if after_low >= modulus / 2 then
      after_low, after_high = (after_low - modulus) % 4294967296, 4294967295
    end
  end
  local allowed = true
  if argv[p + 5] == '1' then
    local signed = after_high >= 2147483648 and after_high - 4294967296 or after_high
    local least_high, least_low = tonumber(argv[p + 6]), tonumber(argv[p + 7])
    local most_high, most_low = tonumber(argv[p + 8]), tonumber(argv[p + 9])
    allowed = (signed > least_high or (signed == least_high and after_low >= least_low))
      and (signed < most_high or (signed == most_high and after_low <= most_low))
  end
  return allowed, offset, width, low, high, after_low, after_high
end

local function log_list(key) return key .. ':' end

local function entries(key, after, count)
  local last = tonumber(call('GET', key) or '0')
  local kept = call('LLEN', log_list(key))
  local first = last - kept + 1
  local skip = math.min(math.max(after + 1 - first, 0), kept)
  local upto = math.min(skip + count, kept)
  local found = {}
  if upto > skip then
    found = call('LRANGE', log_list(key), string.format('%.0f', skip), string.format('%.0f', upto - 1))
  end
  local out = { '\5', u64(last), u64(first), u64(#found > 0 and first + skip or 0), u32(#found) }
  for i = 1, #found do
    out[#out + 1] = u32(#found[i])
    out[#out + 1] = found[i]
  end
  return table.concat(out)
end

local function put_range(key, offset, bytes)
  if #bytes > 0 then
    call('SETRANGE', key, offset, bytes)
  elseif call('STRLEN', key) < tonumber(offset) then
    call('SETRANGE', key, offset - 1, '\0')
  elseif offset == '0' and call('EXISTS', key) == 0 then
    call('SET', key, '')
  end
end

local function change(key, argv, p)
  local letter = argv[p]
  if letter == 'p' then
    put_range(key, argv[p + 1], argv[p + 2])
  elseif letter == 'P' then
    call('SET', key, argv[p + 1])
  else
    call('DEL', key)
  end
end

local function read(key, argv, p)
  local letter = argv[p]
  if letter == 'G' then return '\1' .. optional(call('GET', key)) end
  if letter == 'g' then
    local length = tonumber(argv[p + 2])
    local bytes = ''
    if length > 0 then
      bytes = call('GETRANGE', key, argv[p + 1], string.format('%.0f', tonumber(argv[p + 1]) + length - 1))
    end
    if #bytes == 0 and call('EXISTS', key) == 0 then return '\1\255\255\255\255' end
    return '\1' .. optional(bytes)
  end
  return entries(key, tonumber(argv[p + 1]), tonumber(argv[p + 2]))
end

-- Does a step; nothing when it refuses, which it is only asked where `compare` says so.
local function step(key, argv, p, compare)
  local letter = argv[p]
  if letter == 'G' or letter == 'g' or letter == 'E' then return read(key, argv, p) end
  if letter == 'C' then
    if compare and not holds(key, argv, p + 1) then return nil end
    change(key, argv, p + 1 + EXPECT[argv[p + 1]])
    return '\2'
  end
  if letter == 'N' then
    local allowed, offset, width, low, high, after_low, after_high = sum(key, argv, p)
    if not allowed then return nil end
    local bytes
    if width == 8 then
      bytes = struct.pack('<I4I4', after_low, after_high)
    elseif width == 4 then
      bytes = struct.pack('<I4', after_low)
    else
      bytes = struct.pack('<I' .. width, after_low % (256 ^ width))
    end
    call('SETRANGE', key, offset, bytes)
    return '\3' .. struct.pack('<I4I4', low, high)
  end
  if letter == 'A' then
    call('RPUSH', log_list(key), argv[p + 1])
    return '\4' .. u64(call('INCR', key))
  end
  if letter == 'T' then
    local last = tonumber(call('GET', key) or '0')
    local kept = call('LLEN', log_list(key))
    local gone = math.min(tonumber(argv[p + 1]) - (last - kept), kept)
    if gone > 0 then call('LTRIM', log_list(key), gone, -1) end
    return '\6'
  end
  if letter == 'X' then
    call('DEL', key, log_list(key))
    return '\2'
  end
  change(key, argv, p)
  return '\2'
end

local READS = { G = true, g = true, E = true }
local DELETES = { D = true, X = true, T = true }

-- Whether a full server would do this, though it could not keep that it was done.
local function deletes(argv, p)
  if argv[p] == 'C' then p = p + 1 + EXPECT[argv[p + 1]] end
  return DELETES[argv[p]]
end

local function refuse(keys, argv, at, number, found)
  local out = { 'R', u32(number - 1), optional(found) }
  for i = 1, #at do
    out[#out + 1] = READS[argv[at[i]]] and read(keys[i + 1], argv, at[i]) or '\7'
  end
  return 'R', table.concat(out), nil, keys[number + 1]
end

-- Remembers a value or a log before it is changed.
local function remember(before, key, argv, p)
  if before[key] ~= nil then return end
  local letter = argv[p]
  if letter == 'A' or letter == 'T' or letter == 'X' then
    before[key] = { call('GET', key), call('LRANGE', log_list(key), 0, -1) }
  else
    before[key] = { call('GET', key) }
  end
end

local function put_back(before)
  for key, was in pairs(before) do
    if was[2] then
      call('DEL', log_list(key))
      for i = 1, #was[2] do call('RPUSH', log_list(key), was[2][i]) end
    end
    if was[1] then call('SET', key, was[1]) else call('DEL', key) end
  end
end

-- Returns 'D', 'R' or 'F', the answer, the changed keys, and the key that refused.
local function perform(keys, argv, once, number)
  local p = 5
  if argv[4] ~= '' then
    local held
    held, p = holds(keys[1], argv, 4)
    if not held then return 'F', 'F' .. optional(call('GET', keys[1])) end
  end
  -- One step does all or nothing by itself, and most calls have one.
  if #keys == 2 then
    local letter = argv[p]
    if once and deletes(argv, p) then call('SET', once, number, 'EX', KEEP) end
    local outcome = step(keys[2], argv, p, true)
    if not outcome then return refuse(keys, argv, { p }, 1, call('GET', keys[2])) end
    return 'D', 'D' .. outcome, not READS[letter] and keys
  end
  -- Look.
  local at, changed, listed, careful, frees = {}, {}, {}, false, false
  local refused
  for i = 2, #keys do
    local key, letter = keys[i], argv[p]
    at[i - 1] = p
    if not READS[letter] then
      if not refused and not careful and (letter == 'C' or (letter == 'N' and argv[p + 5] == '1')) then
        if listed[key] then
          careful = true
        elseif letter == 'C' then
          if not holds(key, argv, p + 1) then refused = i - 1 end
        elseif not sum(key, argv, p) then
          refused = i - 1
        end
      end
      frees = frees or deletes(argv, p)
      if not listed[key] then
        listed[key] = true
        changed[#changed + 1] = key
      end
    end
    p = next_step(argv, p)
  end
  if refused then return refuse(keys, argv, at, refused, call('GET', keys[refused + 1])) end
  -- A full store refuses a SET but not a DEL, so it is asked before the first DEL.
  if frees and once then call('SET', once, number, 'EX', KEEP) end
  -- Change.
  local out, before = { 'D' }, {}
  for i = 1, #at do
    if careful and not READS[argv[at[i]]] then remember(before, keys[i + 1], argv, at[i]) end
    local outcome = step(keys[i + 1], argv, at[i], careful)
    if not outcome then
      local found = call('GET', keys[i + 1])
      put_back(before)
      return refuse(keys, argv, at, i, found)
    end
    out[#out + 1] = outcome
  end
  return 'D', table.concat(out), changed
end

local function lanes_of(key)
  local packed = call('HGET', WATCHED, key)
  return packed and cmsgpack.unpack(packed) or {}
end

local function set_lanes(key, lanes)
  if #lanes == 0 then
    call('HDEL', WATCHED, key)
  else
    call('HSET', WATCHED, key, cmsgpack.pack(lanes))
  end
end

local function without(lanes, lane)
  local others = {}
  for i = 1, #lanes do
    if lanes[i] ~= lane then others[#others + 1] = lanes[i] end
  end
  return others
end

local function forget(lane, waiting)
  call('HDEL', WAITING, lane)
  for i = 1, #waiting.watch do
    set_lanes(waiting.watch[i], without(lanes_of(waiting.watch[i]), lane))
  end
end

-- Whoever waits has subscribed to the channel of its lane; who is gone has not.
local function alive(lane)
  return call('PUBSUB', 'NUMSUB', 'trellis:wake:' .. lane)[2] > 0
end

local function waiting_of(lane)
  local packed = call('HGET', WAITING, lane)
  return packed and cmsgpack.unpack(packed)
end

local function enlist(lane, waiting)
  call('HSET', WAITING, lane, cmsgpack.pack(waiting))
  for i = 1, #waiting.watch do
    local key, lanes = waiting.watch[i], {}
    for _, other in ipairs(lanes_of(key)) do
      if other ~= lane and call('HEXISTS', WAITING, other) == 1 then
        if alive(other) then
          lanes[#lanes + 1] = other
        else
          call('HDEL', WAITING, other)
        end
      end
    end
    lanes[#lanes + 1] = lane
    set_lanes(key, lanes)
  end
end

local function watched_keys(keys, argv, refusing)
  if argv[4] ~= '' and keys[1] ~= refusing then return { refusing, keys[1] } end
  return { refusing }
end

-- Does for those who wait what has become possible, oldest first; what that changes may let others go on.
local function hand_over(changed)
  if not changed or #changed == 0 or call('EXISTS', WAITING) == 0 then return end
  local place = 1
  while changed[place] do
    local lanes = lanes_of(changed[place])
    place = place + 1
    for i = 1, #lanes do
      local lane = lanes[i]
      local waiting = waiting_of(lane)
      if waiting and not alive(lane) then
        forget(lane, waiting)
      elseif waiting then
        local once = 'trellis:once:' .. lane
        local ran, status, answer, more, refusing = pcall(perform, waiting.keys, waiting.argv, once, waiting.number)
        if not ran then
          status, answer, more = 'X', 'X' .. tostring(type(status) == 'table' and status.err or status), nil
        end
        if status == 'R' then
          if refusing ~= waiting.watch[1] then
            forget(lane, waiting)
            waiting.watch = watched_keys(waiting.keys, waiting.argv, refusing)
            enlist(lane, waiting)
          end
        else
          forget(lane, waiting)
          call('SET', once, waiting.number .. answer, 'EX', KEEP)
          call('PUBLISH', 'trellis:wake:' .. lane, waiting.number .. answer)
          for j = 1, more and #more or 0 do changed[#changed + 1] = more[j] end
        end
      end
    end
  end
end

local function main(KEYS, ARGV)
  call = redis.call
  local flags, lane, number = tonumber(ARGV[1]), ARGV[2], ARGV[3]
  local once = lane ~= '' and 'trellis:once:' .. lane
  local repeated = flags >= 2
  if once then
    local before = call('GETRANGE', once, 0, 16)
    if string.sub(before, 1, 16) == number then
      -- Without an answer it was refused after room had been looked for: nothing was done.
      if #before > 16 then return string.sub(call('GET', once), 17) end
      before = ''
    end
    before = string.sub(before, 1, 16)
    if before > number then return redis.error_reply('TRELLIS this call was given up') end
    if repeated then
      local waiting = waiting_of(lane)
      if waiting then forget(lane, waiting) end
    end
  end
  local status, answer, changed, refusing = perform(KEYS, ARGV, once, number)
  if status == 'R' and flags % 2 == 1 then
    enlist(lane, { number = number, keys = KEYS, argv = ARGV, watch = watched_keys(KEYS, ARGV, refusing) })
    return 'W'
  end
  -- Another copy of a call that was sent again may still be on its way; it must find that this one was answered.
  if once and (status == 'D' or repeated) then call('SET', once, number .. answer, 'EX', KEEP) end
  if status == 'D' then hand_over(changed) end
  return answer
end
