"""Turns records into text and back, and grows a search tree."""

import json
import random

records = [{"id": i, "name": f"n{i}", "tags": [f"a{i % 13}"], "values": [i / 3, i * 2.5]} for i in range(4000)]
for _ in range(2):
    again = json.loads(json.dumps(records))


class Node:
    __slots__ = ("key", "left", "right")

    def __init__(self, key: int) -> None:
        self.key, self.left, self.right = key, None, None


def insert(root: Node, key: int) -> None:
    while True:
        side = "left" if key < root.key else "right"
        below = getattr(root, side)
        if below is None:
            setattr(root, side, Node(key))
            return
        root = below


random.seed(1)
keys = random.sample(range(10000), 2500)
tree = Node(keys[0])
for key in keys[1:]:
    insert(tree, key)
print(len(again), tree.key)
