"""objects.py [PARTS]: what Python programs allocate: trees, dictionaries of strings, strings, JSON. Prints checksums.

It does a fourth of its work for each of the PARTS, of which there are four."""

import json
import re
import sys
import zlib

parts = int(sys.argv[1]) if len(sys.argv) > 1 else 4


class Node:
    __slots__ = ("left", "right")

    def __init__(self, left=None, right=None):
        self.left, self.right = left, right


def tree(depth):
    return Node(tree(depth - 1), tree(depth - 1)) if depth else Node()


def count(node):
    return 1 + count(node.left) + count(node.right) if node.left else 1


def churn(slots, rounds):
    """Strings of 16 to 1040 bytes, each replaced at random many times."""
    seed, live = 12345, [b""] * slots
    for _ in range(rounds):
        seed = (seed * 1103515245 + 12345) & 0x7FFFFFFF
        live[seed % slots] = bytes(16 + (seed >> 8) % 1024)
    return sum(map(len, live))


print("trees", [count(tree(depth)) for depth in (8, 12, 15, 16)[:parts]])
words = {f"key {i * 7919 % 100003}": [str(i), i * 1.5, {"n": i, "even": i % 2 == 0}] for i in range(15000 * parts)}
text = json.dumps(words, sort_keys=True)
print("json", len(text), zlib.crc32(text.encode()), json.loads(text) == words)
print("words", len(re.findall(r"[a-z]+", text)), zlib.crc32("".join(sorted(text.split(","))).encode()))
print("churn", churn(5000, 100000 * parts))
