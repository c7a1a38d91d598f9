-- Strings, tables that grow, closures and trees.
local words = {}
for i = 1, 8000 do
    words[i] = ("word %d of %s"):format(i * 7919 % 8009, ("x"):rep(i % 60))
end
table.sort(words)

local index = {}
for place, word in ipairs(words) do
    local key = word:sub(6, 7)
    index[key] = index[key] or {}
    table.insert(index[key], {word = word:upper(), place = place, print = function() return word .. place end})
end

local lines = {}
for key, entries in pairs(index) do
    for _, entry in ipairs(entries) do lines[#lines + 1] = key .. entry.word:gsub("%d", "#") .. entry.print() end
end

local function tree(depth)
    return depth == 0 and {} or {tree(depth - 1), tree(depth - 1)}
end

local function count(node)
    return node[1] and 1 + count(node[1]) + count(node[2]) or 1
end

local nodes = 0
for depth = 4, 13 do nodes = nodes + count(tree(depth)) end
print(#table.concat(lines), nodes)
