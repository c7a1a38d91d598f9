# objects.rb: trees, hashes, strings that are too long to live inside their object. Prints checksums.
def tree(depth)
  depth.zero? ? [] : [tree(depth - 1), tree(depth - 1)]
end

def count(node)
  node.empty? ? 1 : 1 + count(node[0]) + count(node[1])
end

puts "trees #{[8, 12, 16, 17].map { |depth| count(tree(depth)) }}"

words = {}
200_000.times { |i| words["word #{i * 7919 % 100_003}"] = i.to_s * 3 }
puts "words #{words.size} #{words.keys.max} #{words.values.sum(&:size)}"

seed = 12345
live = Array.new(5000, "")
1_600_000.times do
  seed = (seed * 1103515245 + 12345) & 0x7fffffff
  live[seed % 5000] = "x" * (16 + (seed >> 8) % 1024)
end
puts "churn #{live.sum(&:size)}"
