-- Builds tables and strings, and takes most of them down again while it goes on.
local window, built = {}, {}
for i = 1, 50000 do
    window[i] = { i, "row " .. i, child = { parent = i } }
    window[i - 1500] = nil
end
for i = 1, 20000 do
    built[#built + 1] = ("w" .. i % 611):rep(i % 6 + 1)
end
table.sort(built)
print(#table.concat(built, " "))
