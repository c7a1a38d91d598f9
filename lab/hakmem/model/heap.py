"""What a thread has: bins, and the slabs that it holds (src/pool/heap.h, bin.c, bin_size.c)."""

from __future__ import annotations

from hakmem.model.classes import Classes
from hakmem.model.memory import Memory
from hakmem.model.policy import Policy
from hakmem.model.slab import Slab

BYTES_PER_SLOT = 192
MOST_BYTES = 256 << 10
BYTES_PER_MISS = 4096
FIRST_SLOTS, LEAST_SLOTS, MOST_SLOTS, SHRUNK_SLOTS = 8, 4, 512, 2
BUDGET_SHARE, TURNING_SHARES = 8, 4
MOST_BLOCKS_PER_MISS = 64
MOST_BLOCKS_IN_A_RUN = 256
EMPTY_SLABS, HELD_SLABS, RECENT_CLASSES = 4, 16, 8

HEAPS = 1 << 48  # where their records lie
HEAP_STRIDE = 1 << 20
RECORD_BYTES, SLOT_BYTES = 10432, 8


class Bin:
    """The newest block is the last. Frees hit it below `limit`, which is its slots, or 0 while it is shut."""

    __slots__ = ("blocks", "limit", "slots", "room", "place", "for_frees", "run", "growth_misses", "growth_turns")

    def __init__(self) -> None:
        self.blocks: list[int] = []
        self.limit = self.slots = self.room = self.place = 0
        self.for_frees = False
        self.run = 0  # misses of one kind in a row: refills above 0, flushes below
        self.growth_misses = self.growth_turns = 0


class Heap:
    def __init__(self, number: int, classes: Classes, memory: Memory) -> None:
        self.record = HEAPS + number * HEAP_STRIDE
        self.memory = memory
        self.bins = [Bin() for _ in range(len(classes))]
        self.partial: list[list[Slab]] = [[] for _ in range(len(classes))]  # the one to take from first
        self.empty: list[int] = []  # units kept for the next slab
        self.slots_bytes = 0
        self.out_bytes = 0  # not told yet
        self.is_shrink_due = False
        self.slots_next = RECORD_BYTES
        memory.touch(self.record, RECORD_BYTES)
        self.forget_thread()

    def forget_thread(self) -> None:
        size = len(self.bins)
        self.acquired_count = self.slow_paths = 0
        self.has_acquired = [False] * size
        self.recent_classes: list[int] = []  # the longest there first
        self.next_to_shrink = 0
        self.small_bins_bytes = self.small_bins_put_bytes = self.growths = 0

    def blank(self) -> None:
        """All it had has gone back."""
        for index in range(len(self.bins)):
            self.bins[index] = Bin()
        self.slots_bytes = 0
        self.slots_next = RECORD_BYTES
        self.forget_thread()

    def touch_slots(self, bin: Bin) -> None:
        """As many as have blocks now, with the one below."""
        self.memory.touch(self.record + bin.place, (len(bin.blocks) + 1) * SLOT_BYTES)


class BinSizes:
    """How many slots a bin may have (src/pool/bin_size.c)."""

    def __init__(self, policy: Policy, classes: Classes) -> None:
        self.policy, self.classes = policy, classes
        self.usual = [0] * len(classes)
        self.quick = [0] * len(classes)
        for size_class in range(1, len(classes)):
            size = classes.block_bytes[size_class]
            slots = min(policy.bin_bytes // BYTES_PER_SLOT, MOST_SLOTS, MOST_BYTES // size)
            self.usual[size_class] = max(LEAST_SLOTS, slots)
            self.quick[size_class] = max(LEAST_SLOTS, policy.bin_bytes // size)

    def grow(self, heap: Heap, size_class: int, heap_bytes: int, threads: int) -> bool:
        """More slots for a bin that has missed: at most twice as many."""
        bin, most, size = heap.bins[size_class], self.usual[size_class], self.classes.block_bytes[size_class]
        have = bin.slots
        if not self._may_grow(have, size) or (heap.small_bins_bytes and have >= SHRUNK_SLOTS):
            return False
        want = min(2 * have if have else min(FIRST_SLOTS, most // 2), most)
        share = heap_bytes // BUDGET_SHARE // max(1, threads)
        want = self._earned(heap, size_class, want, share)
        if want <= have:
            return False
        after = heap.slots_bytes + (want - have) * size
        if after > self.policy.bin_budget_bytes and after > self._allowed(bin, share):
            if have:
                return False
            want = LEAST_SLOTS
        if want > bin.room:
            bin.room, bin.place = want, heap.slots_next
            heap.slots_next += (want + 1) * SLOT_BYTES
            heap.touch_slots(bin)
        bin.slots = want
        heap.slots_bytes += (want - have) * size
        bin.growth_misses = bin.growth_turns = 0
        return True

    def _may_grow(self, slots: int, size: int) -> bool:
        if slots < LEAST_SLOTS:
            return True
        return slots * size < MOST_BYTES and slots * BYTES_PER_SLOT < self.policy.bin_bytes and slots < MOST_SLOTS

    def _allowed(self, bin: Bin, share: int) -> int:
        return TURNING_SHARES * share if bin.growth_turns * 4 > bin.growth_misses else share

    def _earned(self, heap: Heap, size_class: int, want: int, share: int) -> int:
        """Large bins grow by a miss for every 4 KiB, within the thread's share of the heap."""
        bin, quick = heap.bins[size_class], self.quick[size_class]
        if want <= quick:
            return want
        bin.growth_misses += 1
        bin.growth_turns += bin.run < 0 if not bin.blocks else bin.run > 0
        more = (want - bin.slots) * self.classes.block_bytes[size_class]
        is_earned = bin.slots and bin.growth_misses * BYTES_PER_MISS >= more
        return want if is_earned and heap.slots_bytes + more <= self._allowed(bin, share) else quick

    def shrink_to(self, heap: Heap, size_class: int, most: int) -> None:
        """As far as there are no blocks in them."""
        bin = heap.bins[size_class]
        want = max(most, len(bin.blocks))
        if want < bin.slots:
            heap.slots_bytes -= (bin.slots - want) * self.classes.block_bytes[size_class]
            bin.slots = want
            if bin.limit:
                bin.limit = want


def batch_size(slots: int, is_refill: bool, is_long: bool) -> int:
    """How many blocks a miss moves."""
    left = (3 * slots + 4) // 8
    count = slots if is_long else left if is_refill else slots - left
    return min(count, MOST_BLOCKS_IN_A_RUN if is_long else MOST_BLOCKS_PER_MISS)
