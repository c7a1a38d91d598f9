-- objects.lua: trees, tables that grow and strings. Prints checksums.
local function tree(depth)
    if depth == 0 then return {} end
    return {tree(depth - 1), tree(depth - 1)}
end

local function count(node)
    return node[1] and 1 + count(node[1]) + count(node[2]) or 1
end

for _, depth in ipairs {8, 12, 16, 17} do print("tree", depth, count(tree(depth))) end

local words = {}
for i = 1, 200000 do words[i] = ("word %d"):format(i * 7919 % 100003) end
table.sort(words)
print("words", #words, words[1], words[#words], #table.concat(words))

local seed, live = 12345, {}
for _ = 1, 600000 do
    seed = (seed * 1103515245 + 12345) & 0x7fffffff
    live[seed % 5000] = ("x"):rep(16 + (seed >> 8) % 1024)
end
local sum = 0
for _, text in pairs(live) do sum = sum + #text end
print("churn", sum)
