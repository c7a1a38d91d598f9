"""A program that makes the calls of a trace on the model, and touches each page of each block, as a replay does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from hakmem.calls import Call
from hakmem.model.allocator import Allocator
from hakmem.model.classes import ALIGNMENT, SMALL_MAX
from hakmem.model.heap import Heap
from hakmem.model.memory import PAGE, Resident
from hakmem.model.policy import Policy
from hakmem.model.region import Mapping, Run

Small = tuple[int, int]  # address and class
Block = Small | Run | Mapping


class Program:
    def __init__(self, policy: Policy) -> None:
        self.allocator = Allocator(policy)
        self.heaps: dict[int, Heap] = {}  # by thread
        self.blocks: dict[int, Block] = {}
        self.long_lived: set[int] = set()  # blocks, where the policy tells them apart

    def make(self, calls: Sequence[Call], look_every: int = 0) -> Resident:
        """Threads begin with their first call and end after their last, but for the first one. With `look_every`, the
        peak is that of looks after so many events, of which a realloc is two, as in bench_replay."""
        looks, event_count = 0, 0
        memory = self.allocator.memory
        ends = {call.thread: index for index, call in enumerate(calls)}
        ends.pop(calls[0].thread)
        ending = {index: thread for thread, index in ends.items()}
        blocks = self.blocks
        if self.allocator.classes.twins:
            self.long_lived = _long_lived(calls, self.allocator.policy.apart_after)
        for index, (thread, old, block, size, alignment) in enumerate(calls):
            if look_every:
                if old and block:
                    event_count += 1
                    looks = max(looks, len(memory.resident) if event_count % look_every == 0 else 0)
                event_count += 1
            heap = self.heaps.get(thread)
            if heap is None:
                heap = self.heaps[thread] = self.allocator.begin_thread()
            if not old:
                blocks[block] = self._alloc(heap, size, alignment, block in self.long_lived)
            elif not block:
                self._free(heap, blocks.pop(old))
            else:
                blocks[block] = self._realloc(heap, blocks.pop(old), size, block in self.long_lived)
            if index in ending:
                self.allocator.end_thread(self.heaps.pop(thread))
            if look_every and event_count % look_every == 0:
                looks = max(looks, len(memory.resident))
        return replace(memory.total(), peak=looks * PAGE) if look_every else memory.total()

    def address_of(self, block: int) -> int:
        found = self.blocks[block]
        return found[0] if isinstance(found, tuple) else self.allocator.region.start_of(found)

    def _alloc(self, heap: Heap, size: int, alignment: int, is_long_lived: bool) -> Block:
        allocator = self.allocator
        size_class = allocator.classes.serving(size, alignment)
        if size_class == 0:
            large = allocator.alloc_large(heap, max(size, 1), alignment)
            allocator.memory.touch(allocator.region.start_of(large), size)
            return large
        if is_long_lived:
            size_class += allocator.classes.twins
        bin = heap.bins[size_class]
        if bin.blocks and not bin.for_frees:
            block = bin.blocks.pop()
        else:
            block = allocator.alloc_missed(heap, size_class)
        allocator.memory.touch(block, size)
        return block, size_class

    def _free(self, heap: Heap, block: Block) -> None:
        if not isinstance(block, tuple):
            self.allocator.free_large(heap, block)
            return
        address, size_class = block
        bin = heap.bins[size_class]
        if len(bin.blocks) < bin.limit:
            bin.blocks.append(address)
        else:
            self.allocator.free_missed(heap, address, size_class)

    def _realloc(self, heap: Heap, block: Block, size: int, is_long_lived: bool) -> Block:
        allocator = self.allocator
        if isinstance(block, tuple):
            have = allocator.classes.block_bytes[block[1]]
            if size <= have and (size > have // 2 or have <= 4 * ALIGNMENT):
                allocator.memory.touch(block[0], size)
                return block
        else:
            resized = allocator.region.resize_large(block, size, SMALL_MAX)
            if resized is not None:
                allocator.after_growth()
                allocator.memory.touch(allocator.region.start_of(resized), size)
                return resized
        moved = self._alloc(heap, size, 1, is_long_lived)
        self._free(heap, block)
        return moved


def _long_lived(calls: Sequence[Call], share: float) -> set[int]:
    """Blocks that live for more than this share of all calls. What is never freed lives longest."""
    births = {call.block: index for index, call in enumerate(calls) if call.block}
    deaths = {call.old: index for index, call in enumerate(calls) if call.old}
    return {block for block, birth in births.items() if deaths.get(block, math.inf) - birth > share * len(calls)}
