# jobs.rb JOBS RESTING: a worker of a job queue: ten threads make text, JSON and digests, then wait for work.
#
# It prints a checksum, makes the empty file RESTING, and rests until SIGTERM ends it.
require "digest/sha2" # now: Ruby would load it in the first thread that asks, and another one finds the half of it
require "json"
require "zlib"

THREADS = 10
queue = Queue.new
ARGV[0].to_i.times { |number| queue << number }
sums = Array.new(THREADS, 0)
caches = Array.new(THREADS) { [] }
done = Queue.new
rest = Queue.new
trap("TERM") { exit! 0 }

THREADS.times do |own|
  Thread.new do
    loop do
      number = begin
        queue.pop(true)
      rescue ThreadError
        break
      end
      rows = (0...300).map do |i|
        { "id" => i, "name" => "name #{number * i % 1009}", "note" => "x" * (number * 7 + i * 13) .%(400) }
      end
      text = JSON.generate(rows)
      back = JSON.parse(text)
      lines = back.map { |row| row["note"].gsub("xx", "y") + row["name"].upcase }
      packed = Zlib::Deflate.deflate(text)
      sums[own] ^= Zlib.crc32(lines.join("\n") + Digest::SHA256.hexdigest(packed))
      caches[own] = (caches[own] << packed).last(20)
    end
    done << own
    rest.pop
  end
end
THREADS.times { done.pop }
puts "#{ARGV[0]} jobs, checksum #{sums.reduce(:^).to_s(16)}"
$stdout.flush
File.write(ARGV[1], "")
sleep
