-- What an interpreter has: tables, strings, patterns, closures, coroutines, errors that leave C frames by longjmp,
-- metatables, callbacks from the library's sort, garbage collection, files.
local scale = tonumber(SCALE) or 40

-- Closures and tables.
local function counter()
  local count = 0
  return function(step) count = count + (step or 1); return count end
end
local one, other = counter(), counter()
for at = 1, scale do one(at) other() end
print("closures", one(0), other(0))

-- Numbers and texts, and a checksum of both.
local texts, sum = {}, 0
for at = 1, scale * 5 do
  texts[at] = string.format("%05d-%s-%.3f", (at * 7919) % 10007, string.rep("x", at % 7), at / 7)
  sum = (sum * 31 + #texts[at] + texts[at]:byte(at % #texts[at] + 1)) % 1000000007
end
table.sort(texts, function(left, right) return left > right end)
print("sorted", texts[1], texts[#texts], sum)
print("joined", #table.concat(texts, ","), (table.concat(texts, ","):gsub("x+", "X")):sub(1, 60))

-- Patterns.
local words = {}
for word in ("the quick brown fox jumps over the lazy dog the end"):gmatch("%a+") do words[word] = (words[word] or 0) + 1 end
local names = {}
for name in pairs(words) do names[#names + 1] = name end
table.sort(names)
for _, name in ipairs(names) do io.write(name, "=", words[name], " ") end
print()

-- Errors through C frames: pcall, sort and gsub call back.
local function fails(depth) if depth == 0 then error({ code = 42 }) end fails(depth - 1) end
for depth = 0, 20, 5 do
  local fine, what = pcall(fails, depth)
  print("error", fine, type(what), what.code)
end
print("sort", pcall(table.sort, { 3, 1, 2 }, function() error("in a comparison", 0) end))
print("gsub", pcall(string.gsub, "abc", "%a", function(letter) if letter == "b" then error("in a replacement", 0) end end))
print("arithmetic", (select(2, pcall(function() return 1 + {} end))))
print("traceback", xpcall(function() error("deep") end, function(message) return "handled: " .. message:match("deep") end))
print("syntax", load("return +"))
print("overflow", pcall(string.rep, "x", -1), (select(2, pcall(string.rep, "x", 1 << 60))))
-- Each level is a C function that calls back; the interpreter itself stops it.
local function endless(text) return (text:gsub("%a", endless)) end
print("recursion", pcall(endless, "a"))

-- Coroutines that yield across calls, and errors inside.
local function walk(tree)
  if tree then
    walk(tree.left)
    coroutine.yield(tree.key)
    walk(tree.right)
  end
end
local tree
local function insert(node, key)
  if not node then return { key = key } end
  if key < node.key then node.left = insert(node.left, key) else node.right = insert(node.right, key) end
  return node
end
for at = 1, scale do tree = insert(tree, (at * 37) % 101) end
local ordered = {}
for key in coroutine.wrap(function() walk(tree) end) do ordered[#ordered + 1] = key end
print("coroutines", table.concat(ordered, " "))
local broken = coroutine.create(function() coroutine.yield(1) error("inside") end)
print(coroutine.resume(broken)) print(coroutine.resume(broken)) print(coroutine.status(broken))
print("yield in pcall", coroutine.wrap(function() return pcall(function() return coroutine.yield("out") + 1 end) end)())

-- Metatables, integer division, big integers, floats.
local vector = setmetatable({ 1, 2 }, { __add = function(a, b) return a[1] + b[1] + a[2] + b[2] end, __len = function() return 7 end,
  __tostring = function() return "a vector" end, __index = function(_, key) return key .. "?" end })
print("metatables", vector + vector, #vector, tostring(vector), vector.missing)
print("numbers", 7 // 2, -7 // 2, 7 % -3, 2 ^ 0.5, 1e308 * 10, 0x7fffffffffffffff + 1, math.tointeger(3.0), 10 / 3, 5 // 0.0)
print("pack", string.pack("<i4z", 100, "text"):byte(1, -1))
print("unpack", string.unpack("<i4z", string.pack("<i4z", 100, "text")))
print("utf8", utf8.char(228, 8364, 128512), utf8.len("ä€😀"))

-- Collection: what is unreachable goes, finalizers run.
local finalized = 0
for _ = 1, scale do setmetatable({}, { __gc = function() finalized = finalized + 1 end }) end
local weak = setmetatable({}, { __mode = "v" })
weak[1] = {}
collectgarbage() collectgarbage()
print("collected", finalized, weak[1])

-- Files.
local name = os.tmpname()
local file = assert(io.open(name, "w"))
for at = 1, 20 do file:write(at, " ", at * at, "\n") end
file:close()
local total = 0
for line in io.lines(name) do local _, square = line:match("(%d+) (%d+)") total = total + square end
file = io.open(name) print("file", total, file:read("n", "n", "l"), file:read("a"):len(), file:seek("set", 5)) file:close()
os.remove(name)
print("missing", select(2, io.open("/nowhere/at/all")))
print("time", os.date("!%Y-%m-%d %H:%M:%S", 86400), os.time({ year = 2001, month = 1, day = 1, hour = 12 }) ~= nil, os.getenv("TRELLIS_NO_SUCH"))
