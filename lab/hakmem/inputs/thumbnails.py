"""thumbnails.py JOBS RESTING: an image service: threads decode, scale and encode pictures, in bursts, then rest.

Eight threads work through three bursts of so many jobs each. Needs Pillow (Debian's python3-pil). It prints a checksum
of all that was encoded, makes the empty file RESTING, and rests until SIGTERM ends it.
"""

import io
import pathlib
import signal
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor

from PIL import Image

THREADS = 8
BURSTS = 3
PICTURES = 12


def picture(number):
    """A JPEG whose content follows from its number."""
    wide, high = 900 + number * 137 % 900, 700 + number * 211 % 700
    row = bytes((x * (number + 3) ^ x >> 3) & 255 for x in range(3 * wide))
    pixels = b"".join(row[y % 96 :] + row[: y % 96] for y in range(high))
    file = io.BytesIO()
    Image.frombytes("RGB", (wide, high), pixels).save(file, "JPEG", quality=80)
    return file.getvalue()


def job(number):
    with Image.open(io.BytesIO(sources[number % PICTURES])) as source:
        whole = source.convert("RGB")
    total = 0
    for size in (600, 320, 120):
        small = whole.resize((size, size * whole.height // whole.width), Image.LANCZOS)
        file = io.BytesIO()
        small.save(file, "PNG" if size == 120 else "JPEG")
        total ^= zlib.crc32(file.getvalue())
    return total


signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # it is waited for at the end
sources = [picture(number) for number in range(PICTURES)]
total = 0
with ThreadPoolExecutor(THREADS) as pool:
    for burst in range(BURSTS):
        for one in pool.map(job, range(burst, burst + int(sys.argv[1]))):
            total = (total * 31 + one) & 0xFFFFFFFF
    print(f"{BURSTS * int(sys.argv[1])} jobs, checksum {total:08x}", flush=True)
    pathlib.Path(sys.argv[2]).touch()
    signal.sigwait({signal.SIGTERM})
