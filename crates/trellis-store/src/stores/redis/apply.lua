-- One call of a store, all or nothing, once. `main` is called with:
--
-- KEYS: [1] the guard's key (or ''), then the key of each step.
-- ARGV: [1] flags: 1 = wait when refused, 2 = was sent before; [2] lane of the caller, '' when the call only reads;
--       [3] number of the call, 16 digits; [4..] guard, then steps (see redis/script.rs).
-- Answer: what came of it as crate::codec writes it, or 'W' when the caller waits.
--
-- Redis cannot take back what a script has written, so what may refuse is looked at before anything is changed. Only
-- where a step compares what an earlier step of the same call changed, values are kept and put back.
--
-- A command costs several times what it does, so everything that a call looks at is read with one, and numbers go to
-- commands as text: Redis would print each as a floating point one.

local WAITING = 'trellis:waiting' -- lane -> its call, number and keys it waits for
local WATCHED = 'trellis:watched' -- key -> lanes that wait for it, oldest first
local KEEP = '600' -- seconds for which the answer of a lane's last call is kept
local BATCH = 200 -- so many keys go into one command
local call -- set when a call begins: a library has none while it is loaded

local function u32(number) return struct.pack('<I4', number) end
local function u64(number) return struct.pack('<I4I4', number % 4294967296, math.floor(number / 4294967296)) end
local function optional(bytes)
  if bytes then return u32(#bytes) .. bytes end
  return '\255\255\255\255'
end

local TEXTS = {}
local function text(number)
  local found = TEXTS[number]
  if not found then
    found = string.format('%.0f', number)
    -- Offsets in pages and records; what is larger is not kept.
    if number >= 0 and number <= 4096 then TEXTS[number] = found end
  end
  return found
end

-- Bytes of a value; what is missing is zero.
local function part(value, offset, length)
  local bytes = value and string.sub(value, offset + 1, offset + length) or ''
  if #bytes < length then bytes = bytes .. string.rep('\0', length - #bytes) end
  return bytes
end

-- A value, as it was read for all steps unless an earlier step changed it.
local function value_of(values, key)
  local value = values[key]
  if value == nil then value = call('GET', key) end
  return value
end

-- Expectations: 'A' | 'V' bytes | 'R' offset bytes. Whether it holds.
local function holds(value, argv, p)
  local kind = argv[p]
  if kind == 'A' then return not value end
  if kind == 'V' then return value == argv[p + 1] end
  return part(value, tonumber(argv[p + 1]), #argv[p + 2]) == argv[p + 2]
end

local EXPECT = { [''] = 1, A = 1, V = 2, R = 3 }
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

-- The number at a place of a value: its bytes after an addition, nothing when the bounds do not allow it; and the eight
-- bytes that it was before.
local function sum(value, argv, p)
  local offset, width = tonumber(argv[p + 1]), tonumber(argv[p + 2])
  local add_low, add_high = tonumber(argv[p + 3]), tonumber(argv[p + 4])
  local found = part(value, offset, width)
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
  local after
  if not allowed then
    after = nil
  elseif width == 8 then
    after = struct.pack('<I4I4', after_low, after_high)
  elseif width == 4 then
    after = struct.pack('<I4', after_low)
  else
    after = struct.pack('<I' .. width, after_low % (256 ^ width))
  end
  return after, struct.pack('<I4I4', low, high)
end

local function log_list(key) return key .. ':' end

local function entries(key, after, count, last)
  last = tonumber(last or '0')
  local kept = call('LLEN', log_list(key))
  local first = last - kept + 1
  local skip = math.min(math.max(after + 1 - first, 0), kept)
  local upto = math.min(skip + count, kept)
  local found = {}
  if upto > skip then
    found = call('LRANGE', log_list(key), text(skip), text(upto - 1))
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
    call('SETRANGE', key, text(offset - 1), '\0')
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

local function read(key, argv, p, values)
  local letter = argv[p]
  if letter == 'G' then return '\1' .. optional(value_of(values, key)) end
  if letter == 'g' then
    local length = tonumber(argv[p + 2])
    local bytes = ''
    if length > 0 then bytes = call('GETRANGE', key, argv[p + 1], text(tonumber(argv[p + 1]) + length - 1)) end
    if #bytes == 0 and call('EXISTS', key) == 0 then return '\1\255\255\255\255' end
    return '\1' .. optional(bytes)
  end
  return entries(key, tonumber(argv[p + 1]), tonumber(argv[p + 2]), value_of(values, key))
end

-- Whether a step deletes what it expects not to be there.
local function asks_only(argv, p)
  return argv[p] == 'C' and argv[p + 1] == 'A' and argv[p + 2] == 'D'
end

-- Does a step; nothing when it refuses, which it is only asked where `compare` says so. `known` is what came of the
-- addition, where that was looked at before.
local function step(key, argv, p, compare, values, known)
  local letter = argv[p]
  if letter == 'G' or letter == 'g' or letter == 'E' then return read(key, argv, p, values) end
  if letter == 'C' then
    if compare and not holds(value_of(values, key), argv, p + 1) then return nil end
    if asks_only(argv, p) then return '\2' end
    values[key] = nil
    change(key, argv, p + 1 + EXPECT[argv[p + 1]])
    return '\2'
  end
  if letter == 'N' then
    local after, before
    if known then
      after, before = known[1], known[2]
    else
      after, before = sum(value_of(values, key), argv, p)
    end
    if not after then return nil end
    values[key] = nil
    call('SETRANGE', key, argv[p + 1], after)
    return '\3' .. before
  end
  values[key] = nil
  if letter == 'A' then
    call('RPUSH', log_list(key), argv[p + 1])
    return '\4' .. u64(call('INCR', key))
  end
  if letter == 'T' then
    local last = tonumber(call('GET', key) or '0')
    local kept = call('LLEN', log_list(key))
    local gone = math.min(tonumber(argv[p + 1]) - (last - kept), kept)
    if gone > 0 then call('LTRIM', log_list(key), text(gone), '-1') end
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

-- Who waits needs no answer yet.
local function refuse(keys, argv, at, number, found, values, waits)
  if waits then return 'R', nil, nil, keys[number + 1] end
  local out = { 'R', u32(number - 1), optional(found) }
  for i = 1, #at do
    out[#out + 1] = READS[argv[at[i]]] and read(keys[i + 1], argv, at[i], values) or '\7'
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

-- Where the arguments of each step begin, and the values that the guard and the steps look at.
local LOOKS = { C = true, N = true, G = true, E = true }
local function look(keys, argv, once)
  local at, names, p = {}, {}, 4 + EXPECT[argv[4]]
  if once then names[1] = once end
  if argv[4] ~= '' then names[#names + 1] = keys[1] end
  for i = 2, #keys do
    at[i - 1] = p
    if LOOKS[argv[p]] and #names < BATCH then names[#names + 1] = keys[i] end
    p = next_step(argv, p)
  end
  local values = {}
  if #names > 0 then
    local found = call('MGET', unpack(names))
    for i = 1, #names do values[names[i]] = found[i] end
  end
  return at, values
end

-- Looks whether anything refuses. Returns the step that does; what came of additions; the keys that change; whether a
-- step compares what an earlier one changes, so that the rest was not looked at; and whether anything is deleted.
local function inspect(keys, argv, at, values)
  local known, changed, listed, careful, frees = {}, {}, {}, false, false
  for i = 1, #at do
    local key, p = keys[i + 1], at[i]
    local letter = argv[p]
    local asks = false
    if letter == 'C' then
      if listed[key] then
        careful = true
      elseif not careful then
        if not holds(value_of(values, key), argv, p + 1) then return i end
        asks = asks_only(argv, p)
      end
    elseif letter == 'N' then
      if listed[key] then
        careful = careful or argv[p + 5] == '1'
      elseif not careful then
        local after, before = sum(value_of(values, key), argv, p)
        if not after then return i end
        known[i] = { after, before }
      end
    end
    if not asks and not READS[letter] then
      frees = frees or deletes(argv, p)
      if not listed[key] then
        listed[key] = true
        changed[#changed + 1] = key
      end
    end
  end
  return nil, known, changed, careful, frees
end

-- Returns 'D', 'R' or 'F', the answer, the changed keys, and the key that refused.
local function perform(keys, argv, once, number, waits, at, values)
  if argv[4] ~= '' then
    local value = value_of(values, keys[1])
    if not holds(value, argv, 4) then return 'F', 'F' .. optional(value) end
  end
  -- One step does all or nothing by itself, and most calls have one.
  if #at == 1 then
    local p = at[1]
    if once and deletes(argv, p) then call('SET', once, number, 'EX', KEEP) end
    local outcome = step(keys[2], argv, p, true, values)
    if not outcome then return refuse(keys, argv, at, 1, value_of(values, keys[2]), values, waits) end
    return 'D', 'D' .. outcome, not READS[argv[p]] and { keys[2] }
  end
  local refused, known, changed, careful, frees = inspect(keys, argv, at, values)
  if refused then
    return refuse(keys, argv, at, refused, value_of(values, keys[refused + 1]), values, waits)
  end
  -- A full store refuses a SET but not a DEL, so it is asked before the first DEL.
  if frees and once then call('SET', once, number, 'EX', KEEP) end
  local out, before = { 'D' }, {}
  for i = 1, #at do
    local key, p = keys[i + 1], at[i]
    if careful and not READS[argv[p]] then remember(before, key, argv, p) end
    local outcome = step(key, argv, p, careful, values, known[i])
    if not outcome then
      local found = call('GET', key)
      put_back(before)
      return refuse(keys, argv, at, i, found, {}, waits)
    end
    out[i + 1] = outcome
  end
  return 'D', table.concat(out), changed
end

-- The lanes that wait for each of some keys.
local function lanes_of(keys)
  local lists = call('HMGET', WATCHED, unpack(keys))
  for i = 1, #lists do lists[i] = lists[i] and cmsgpack.unpack(lists[i]) or {} end
  return lists
end

local function set_lanes(keys, lists)
  local gone, kept = {}, {}
  for i = 1, #keys do
    if #lists[i] == 0 then
      gone[#gone + 1] = keys[i]
    else
      kept[#kept + 1] = keys[i]
      kept[#kept + 1] = cmsgpack.pack(lists[i])
    end
  end
  if #gone > 0 then call('HDEL', WATCHED, unpack(gone)) end
  if #kept > 0 then call('HSET', WATCHED, unpack(kept)) end
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
  local lists = lanes_of(waiting.watch)
  for i = 1, #lists do lists[i] = without(lists[i], lane) end
  set_lanes(waiting.watch, lists)
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
  local lists = lanes_of(waiting.watch)
  for i = 1, #lists do
    local lanes = {}
    for _, other in ipairs(lists[i]) do
      if other ~= lane and call('HEXISTS', WAITING, other) == 1 then
        if alive(other) then
          lanes[#lanes + 1] = other
        else
          call('HDEL', WAITING, other)
        end
      end
    end
    lanes[#lanes + 1] = lane
    lists[i] = lanes
  end
  set_lanes(waiting.watch, lists)
end

local function watched_keys(keys, argv, refusing)
  if argv[4] ~= '' and keys[1] ~= refusing then return { refusing, keys[1] } end
  return { refusing }
end

-- Does a call that waits, if that has become possible. Returns the keys that it changed.
local function try(lane)
  local waiting = waiting_of(lane)
  if not waiting then return nil end
  if not alive(lane) then return forget(lane, waiting) end
  local keys, argv, once = waiting.keys, waiting.argv, 'trellis:once:' .. lane
  local ran, status, answer, more, refusing = pcall(function()
    return perform(keys, argv, once, waiting.number, true, look(keys, argv))
  end)
  if not ran then
    status, answer, more = 'X', 'X' .. tostring(type(status) == 'table' and status.err or status), nil
  end
  if status == 'R' then
    if refusing ~= waiting.watch[1] then
      forget(lane, waiting)
      waiting.watch = watched_keys(keys, argv, refusing)
      enlist(lane, waiting)
    end
    return nil
  end
  forget(lane, waiting)
  call('SET', once, waiting.number .. answer, 'EX', KEEP)
  call('PUBLISH', 'trellis:wake:' .. lane, waiting.number .. answer)
  return more
end

-- Does for those who wait what has become possible, oldest first; what that changes may let others go on.
local function hand_over(changed)
  if not changed or #changed > BATCH and call('EXISTS', WATCHED) == 0 then return end
  local place = 1
  while changed[place] do
    local upto = math.min(#changed, place + BATCH - 1)
    local lists = call('HMGET', WATCHED, unpack(changed, place, upto))
    place = upto + 1
    for i = 1, #lists do
      for _, lane in ipairs(lists[i] and cmsgpack.unpack(lists[i]) or {}) do
        for _, key in ipairs(try(lane) or {}) do changed[#changed + 1] = key end
      end
    end
  end
end

local function main(KEYS, ARGV)
  call = redis.call
  local flags, lane, number = tonumber(ARGV[1]), ARGV[2], ARGV[3]
  local once = lane ~= '' and 'trellis:once:' .. lane
  local repeated = flags >= 2
  local at, values = look(KEYS, ARGV, once)
  if once then
    local before = values[once] or ''
    local last = string.sub(before, 1, 16)
    -- Without an answer it was refused after room had been looked for: nothing was done.
    if last == number and #before > 16 then return string.sub(before, 17) end
    if last > number then return redis.error_reply('TRELLIS this call was given up') end
    if repeated then
      local waiting = waiting_of(lane)
      if waiting then forget(lane, waiting) end
    end
  end
  local waits = flags % 2 == 1
  local status, answer, changed, refusing = perform(KEYS, ARGV, once, number, waits, at, values)
  if status == 'R' and waits then
    enlist(lane, { number = number, keys = KEYS, argv = ARGV, watch = watched_keys(KEYS, ARGV, refusing) })
    return 'W'
  end
  -- Another copy of a call that was sent again may still be on its way; it must find that this one was answered.
  if once and (status == 'D' or repeated) then call('SET', once, number .. answer, 'EX', KEEP) end
  if status == 'D' then hand_over(changed) end
  return answer
end
