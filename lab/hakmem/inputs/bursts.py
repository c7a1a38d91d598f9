"""bursts.py REQUESTS [RESTING]: a service as many are: threads, bursts of requests, a small cache, then nothing to do.

Eight threads work through three bursts of so many requests each. A request reads a document of 2 to 120 KiB, turns it
into JSON and back, and keeps the answer until its burst is over; the last answers of each thread stay in a cache. Then
the service prints a checksum of all answers, makes the empty file RESTING, and rests until SIGTERM ends it.
"""

import json
import pathlib
import queue
import signal
import sys
import threading
import time
import zlib

THREADS = 8
BURSTS = 3
CACHED = 10  # answers of each thread
LEAST, MOST = 2 << 10, 120 << 10  # bytes of a document

WORDS = " ".join(f"word{i * 7919 % 10007:x}" for i in range(20000)).encode()


def document(number):
    """A text that follows from its number."""
    size = LEAST + number * 2654435761 % (MOST - LEAST)
    begin = number * 40503 % (len(WORDS) - MOST)
    return WORDS[begin : begin + size].decode()


def answer(number):
    text = document(number)
    lines = [text[i : i + 2000] for i in range(0, len(text), 2000)]
    packed = json.dumps({"number": number, "lines": lines})
    return json.loads(packed)["lines"], packed.encode()


def work(requests, sums):
    cache, sum_of_all, kept = [], 0, []
    while (number := requests.get()) is not None:
        if number < 0:  # the burst is over
            cache, kept = [*cache, *kept][-CACHED:], []
            requests.task_done()
            continue
        lines, packed = answer(number)
        sum_of_all ^= zlib.crc32(packed)
        kept.append((lines, packed))
        requests.task_done()
    sums.append(sum_of_all)
    done.wait()  # with its cache, as a service's threads do


signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # it is waited for at the end
requests_of = [queue.Queue() for _ in range(THREADS)]
sums, done = [], threading.Event()
threads = [threading.Thread(target=work, args=(requests, sums)) for requests in requests_of]
for thread in threads:
    thread.start()
for burst in range(BURSTS):
    for number in range(int(sys.argv[1])):
        requests_of[number % THREADS].put(burst * 1000003 + number)
    for requests in requests_of:
        requests.put(-1)
    for requests in requests_of:
        requests.join()
for requests in requests_of:
    requests.put(None)
while len(sums) < THREADS:
    time.sleep(0.01)
total = 0
for one in sums:
    total ^= one
print(f"{BURSTS * int(sys.argv[1])} answers, checksum {total:08x}", flush=True)
if len(sys.argv) > 2:
    pathlib.Path(sys.argv[2]).touch()
    signal.sigwait({signal.SIGTERM})
done.set()
