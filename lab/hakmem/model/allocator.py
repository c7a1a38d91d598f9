"""The allocator: calls of a program, and the addresses that they get (src/front/miss.c, src/pool)."""

from __future__ import annotations

import os

from hakmem.model.classes import Classes
from hakmem.model.heap import (
    EMPTY_SLABS,
    HELD_SLABS,
    RECENT_CLASSES,
    SHRUNK_SLOTS,
    Bin,
    BinSizes,
    Heap,
    batch_size,
)
from hakmem.model.memory import PAGE, Memory
from hakmem.model.policy import TODAY, Flush, Policy, Refill
from hakmem.model.region import SUPER_SLAB_BYTES, Mapping, Region, Run
from hakmem.model.rounds import Rounds
from hakmem.model.slab import WORD_BITS, Slab, State

USUAL_UNIT_BYTES = TODAY.unit_bytes
AHEAD_AFTER = 256
AHEAD_UNITS = EMPTY_SLABS
FEW_DIRTY_BYTES = 1 << 20
NOT_SMALL = 8  # SuperSlabs a heap
LEAST_BACKGROUND_BYTES = 8 << 20
BURST_BYTES = 2 << 20  # used again, for the background thread of a program with one thread
PATHS_PER_LOOK = 64
PUT_GROUPS = 64
FEW_HEAPS, HEAPS_PER_PROCESSOR, MOST_KEPT_HEAPS = 4, 2, 8
MOST_KEPT_BYTES = 4096  # of blocks that a heap keeps whose thread has ended


class Allocator:
    """Threads are told by the heap that they pass, which `begin_thread` returns. Small blocks are told by address and
    class, large ones by what alloc_large of the region returned."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.memory = Memory()
        self.classes = Classes(policy)
        self.region = Region(policy.unit_bytes, self.memory)
        self.sizes = BinSizes(policy, self.classes)
        self.rounds = Rounds(self)
        self.pool: list[set[Slab]] = [set() for _ in range(len(self.classes))]
        self.slab_counts = [0] * len(self.classes)  # of all heaps
        self.kept: list[Heap] = []
        self.unused: list[Heap] = []
        self.heap_count = self.heaps_in_use = self.slab_number = 0
        self.few_heaps = max(FEW_HEAPS, HEAPS_PER_PROCESSOR * len(os.sched_getaffinity(0)))

    # ---- Threads -----------------------------------------------------------------------------------------------------

    def begin_thread(self) -> Heap:
        self.heaps_in_use += 1
        if self.kept:
            return self.kept.pop(0)
        if self.unused:
            return self.unused.pop()
        self.heap_count += 1
        return Heap(self.heap_count, self.classes, self.memory)

    def end_thread(self, heap: Heap) -> None:
        kept = len(self.kept)
        is_enough = kept > 0 and (kept >= MOST_KEPT_HEAPS or kept + 1 >= self.heaps_in_use)
        if is_enough or heap.slots_bytes > self.policy.bin_budget_bytes:
            self.heaps_in_use -= 1
            self._take_apart(heap)
            return
        self._give_up_large_blocks(heap)
        self._give_up_slabs(heap)
        self.region.after_release(0)
        self.rounds.tell(heap)
        heap.forget_thread()
        self.kept.append(heap)
        self.heaps_in_use -= 1

    def _give_up_large_blocks(self, heap: Heap) -> None:
        for size_class in range(1, len(self.classes)):
            if self.classes.block_bytes[size_class] > MOST_KEPT_BYTES:
                self.flush_bin(heap, size_class)
                self.sizes.shrink_to(heap, size_class, SHRUNK_SLOTS)

    def _take_apart(self, heap: Heap) -> None:
        for size_class in range(1, len(self.classes)):
            self.flush_bin(heap, size_class)
        self._give_up_slabs(heap)
        self.region.after_release(0)
        self.rounds.tell(heap)
        heap.blank()
        self.unused.append(heap)

    def _are_many(self) -> bool:
        return self.heaps_in_use > self.few_heaps

    def _wants_unit(self, heap: Heap) -> bool:
        return len(heap.empty) < (1 if self._are_many() else EMPTY_SLABS)

    def _leave(self, heap: Heap) -> None:
        heap.slow_paths += 1
        if heap.slow_paths % PATHS_PER_LOOK == 0 and not self.region.has_background:
            self.region.allowance.look()

    # ---- Small blocks ------------------------------------------------------------------------------------------------

    def alloc_missed(self, heap: Heap, size_class: int) -> int:
        bin = heap.bins[size_class]
        if not bin.blocks:
            self._refill(heap, bin, size_class)
        block = bin.blocks.pop()
        bin.for_frees, bin.limit = False, bin.slots
        self._leave(heap)
        self.after_growth()
        return block

    def after_growth(self) -> None:
        """At the end of each call that may have made the heap larger."""
        works_in_bursts = self.region.reused_pages * PAGE >= BURST_BYTES
        is_large = len(self.region.dirty) * SUPER_SLAB_BYTES >= LEAST_BACKGROUND_BYTES
        if is_large and (self.heaps_in_use > 1 or works_in_bursts):
            self.region.has_background = True
        if self.region.owed_units:
            self.region.pay()

    def _count_miss(self, bin: Bin, kind: int) -> bool:
        """True at the end of a long run. `kind` is 1 for refills, -1 for flushes."""
        run, long = bin.run * kind, self.policy.long_refill if kind > 0 else self.policy.long_flush
        run = 1 if run < 0 else min(run + 1, long)
        bin.run = run * kind
        return run == long

    def _grow_bin(self, heap: Heap, size_class: int) -> bool:
        heap_bytes = len(self.region.dirty) * SUPER_SLAB_BYTES
        return self.sizes.grow(heap, size_class, heap_bytes, self.heaps_in_use)

    def _refill(self, heap: Heap, bin: Bin, size_class: int) -> None:
        self._grow_bin(heap, size_class)
        is_long = self._count_miss(bin, 1)
        want = batch_size(bin.slots, True, is_long)
        got = self._take(heap, size_class, want)
        if self.classes.is_closed_group(size_class) and self._is_wanted(size_class):
            self.classes.open_group(size_class)
        got.reverse()
        bin.blocks = got
        heap.touch_slots(bin)

    def _is_wanted(self, size_class: int) -> bool:
        """With smaller units, as many bytes."""
        slab_bytes = self.classes.unit_count[size_class] * self.policy.unit_bytes
        most_bytes = self.policy.slabs_to_open * max(slab_bytes, USUAL_UNIT_BYTES) * max(1, self.heaps_in_use)
        return self.slab_counts[size_class] * slab_bytes > most_bytes

    def free_missed(self, heap: Heap, block: int, size_class: int) -> None:
        bin = heap.bins[size_class]
        is_for_frees = False
        if bin.slots == 0 or len(bin.blocks) >= bin.slots:
            is_for_frees = self._make_room(heap, bin, size_class)
        bin.blocks.append(block)
        bin.for_frees, bin.limit = is_for_frees, bin.slots
        if heap.is_shrink_due:
            self.rounds.go_on(heap)
        self._leave(heap)
        self._take_turn()

    def _make_room(self, heap: Heap, bin: Bin, size_class: int) -> bool:
        heap.touch_slots(bin)
        if self._grow_bin(heap, size_class):
            return False
        is_long = self._count_miss(bin, -1)
        self.put_oldest(heap, size_class, batch_size(bin.slots, False, is_long))
        return is_long

    def _take_turn(self) -> None:
        if self.region.owed_units:
            self.region.pay()
        elif self.rounds.unit is not None:
            self.rounds.turn()

    # ---- Flushing ----------------------------------------------------------------------------------------------------

    def put_oldest(self, heap: Heap, size_class: int, count: int) -> None:
        bin = heap.bins[size_class]
        if self.policy.flush is Flush.EMPTIEST and count < len(bin.blocks):
            bin.blocks = self._emptiest_first(bin.blocks)
        self._put(heap, size_class, bin.blocks[:count])
        del bin.blocks[:count]

    def _emptiest_first(self, blocks: list[int]) -> list[int]:
        """In this order, for all blocks of the 64 that they lie among; of equals, those that came first."""
        together: dict[tuple[Slab, int], list[int]] = {}
        for block in blocks:
            slab, index = self._place_of(block)
            together.setdefault((slab, index // WORD_BITS), []).append(block)
        free = {
            block: (slab.bits[word] | slab.claimed_in(word)).bit_count() + len(these)
            for (slab, word), these in together.items()
            for block in these
        }
        return sorted(blocks, key=lambda block: -free[block])

    def flush_bin(self, heap: Heap, size_class: int, most: int = 1 << 30) -> int:
        """The oldest `most` blocks go back; returns how many did. A bin without blocks is shut."""
        bin = heap.bins[size_class]
        count = min(most, len(bin.blocks))
        if count:
            heap.touch_slots(bin)
            self.put_oldest(heap, size_class, count)
            if not bin.blocks:
                bin.limit = 0
        return count

    def _place_of(self, block: int) -> tuple[Slab, int]:
        slab = self.region.at[block // self.policy.unit_bytes]
        assert isinstance(slab, Slab)
        return slab, (block - slab.start) // slab.block_bytes

    def _put(self, heap: Heap, size_class: int, blocks: list[int]) -> None:
        left = iter(blocks)
        while True:
            groups: dict[tuple[Slab, int], int] = {}
            for block in left:
                slab, index = self._place_of(block)
                key = slab, index // WORD_BITS
                groups[key] = groups.get(key, 0) | 1 << index % WORD_BITS
                if len(groups) == PUT_GROUPS:
                    break
            if not groups:
                break
            keeper = None if self._are_many() else heap
            for (slab, word), mask in groups.items():
                self._put_group(heap, slab, word, mask, keeper)
        self.rounds.count(heap, -len(blocks) * self.classes.block_bytes[size_class])

    def _put_group(self, heap: Heap, slab: Slab, word: int, mask: int, keeper: Heap | None) -> None:
        self.region.touch_bits(slab)
        slab.bits[word] |= mask
        if slab.state is State.FULL:
            if keeper is None or slab.heap is not keeper:
                self._share(heap, slab)
                return
            if not self._hold(heap, slab):
                return
        bits = slab.bits[word]
        if slab.state is State.HELD and slab.heap is heap:
            slab.scan_word = min(slab.scan_word, word)
            if bits | slab.claimed_in(word) == slab.masks[word]:
                partial = heap.partial[slab.size_class]
                if len(partial) > 1 and slab.is_empty():
                    partial.remove(slab)
                    self._retire(heap, slab)
        elif slab.state is State.POOLED and bits == slab.masks[word]:
            self._retire_if_empty(heap, slab)

    def _hold(self, heap: Heap, slab: Slab) -> bool:
        partial = heap.partial[slab.size_class]
        if len(partial) >= HELD_SLABS:
            self._share(heap, slab)
            return False
        slab.state, slab.heap, slab.scan_word = State.HELD, heap, 0
        partial.insert(0, slab)
        return True

    def _share(self, heap: Heap, slab: Slab) -> None:
        slab.state = State.POOLED
        self.pool[slab.size_class].add(slab)
        self._retire_if_empty(heap, slab)

    def _retire_if_empty(self, heap: Heap, slab: Slab) -> None:
        if slab.all_set():
            self.pool[slab.size_class].discard(slab)
            self._retire(heap, slab)

    def _retire(self, heap: Heap, slab: Slab) -> None:
        region = self.region
        self.slab_counts[slab.size_class] -= 1
        region.slab_bytes -= slab.block_bytes * slab.block_count
        purged = slab.purged_pages.bit_count()
        region.slab_holes -= purged
        if purged and not region.has_background:
            size = slab.units * self.policy.unit_bytes
            self.memory.purge(slab.start, size)
            region.allowance.gave(size - purged * PAGE)
            region.release_fresh(slab.unit, slab.units, given=True)
        elif slab.units == 1 and self._wants_unit(heap):
            region.at[slab.unit] = None
            heap.empty.append(slab.unit)
        else:
            region.release(slab.unit, slab.units)
            region.after_release(slab.units)

    def _give_up_slabs(self, heap: Heap) -> None:
        for size_class in range(1, len(self.classes)):
            self._give_up_slabs_of(heap, size_class)
        self.release_kept_units(heap)

    def _give_up_slabs_of(self, heap: Heap, size_class: int) -> None:
        partial = heap.partial[size_class]
        while partial:
            slab = partial.pop(0)
            if slab.is_empty():
                self._retire(heap, slab)
            else:
                if slab.tail_word < len(slab.bits) or slab.claimed:
                    self.region.touch_bits(slab)
                slab.unclaim()
                self._share(heap, slab)

    def release_kept_units(self, heap: Heap) -> None:
        while heap.empty:
            self.region.release(heap.empty.pop(), 1)

    # ---- Taking ------------------------------------------------------------------------------------------------------

    def _take(self, heap: Heap, size_class: int, want: int) -> list[int]:
        partial = heap.partial[size_class]
        got: list[int] = []
        while len(got) < want:
            if not partial:
                if got:
                    break
                self._acquire(heap, size_class)
            slab = self._choose(partial)
            if not slab.claimed and not self._claim_word(slab):
                partial.remove(slab)
                slab.state = State.FULL
                continue
            got += slab.take(want - len(got))
        if self._are_many():
            self._share_slabs(heap, size_class)
        self.rounds.count(heap, len(got) * self.classes.block_bytes[size_class])
        return got

    def _choose(self, partial: list[Slab]) -> Slab:
        refill = self.policy.refill
        if refill is Refill.NEWEST_SLAB or len(partial) == 1:
            return partial[0]
        for slab in partial:
            if slab.claimed:
                return slab
        if refill is Refill.OLDEST_SLAB:
            return min(partial, key=lambda slab: slab.number)
        if refill is Refill.FULLEST_SLAB:
            return min(partial, key=lambda slab: (slab.free_count(), slab.number))
        return min(partial, key=_fullness_of_words)

    def _claim_word(self, slab: Slab) -> bool:
        word = slab.fullest_word() if self.policy.refill is Refill.FULLEST_WORD else None
        if word is not None:
            slab.claim(word)
        elif not slab.claim_word():
            return False
        if slab.purged_pages:
            purged = slab.purged_pages.bit_count()
            slab.purged_pages = 0
            self.region.slab_holes -= purged
            self.region.reused_pages += purged
        return True

    def _share_slabs(self, heap: Heap, size_class: int) -> None:
        if size_class in heap.recent_classes:
            return
        if len(heap.recent_classes) == RECENT_CLASSES:
            self._give_up_slabs_of(heap, heap.recent_classes.pop(0))
        heap.recent_classes.append(size_class)

    def _acquire(self, heap: Heap, size_class: int) -> None:
        pool = self.pool[size_class]
        if pool:
            slab = min(pool, key=lambda slab: slab.start)
            pool.remove(slab)
            self._hold(heap, slab)
            return
        units = self.classes.unit_count[size_class]
        unit = self._units_for_slab(heap, size_class, units)
        heap.acquired_count += 1
        heap.has_acquired[size_class] = True
        self.slab_counts[size_class] += 1
        self.region.former[unit] = size_class
        size, count = self.classes.block_bytes[size_class], self.classes.block_count[size_class]
        slab = Slab(unit * self.policy.unit_bytes, unit, units, size_class, size, count)
        self.slab_number += 1
        slab.number = self.slab_number
        self.region.at[unit : unit + units] = [slab] * units
        self.region.touch_record(unit)
        self.region.slab_bytes += size * count
        self._hold(heap, slab)

    def _units_for_slab(self, heap: Heap, size_class: int, units: int) -> int:
        """In stages: see src/pool/pool.h."""
        region = self.region
        is_small = len(region.dirty) < NOT_SMALL * self.heaps_in_use
        unit = self._former_units(heap, size_class, units) if is_small else None
        if unit is not None:
            return unit
        if not heap.has_acquired[size_class] and region.dirty_units < FEW_DIRTY_BYTES // region.unit_bytes:
            unit = region.take_fresh(units, units)
            if unit is not None:
                return unit
        unit = self._used_units(heap, units)
        if unit is None:
            unit = self._ahead(heap, units, dirty=False)
        for _ in range(1 if is_small else 2):
            if unit is None:
                self._give_up_idle(heap, size_class)
                self._take_kept_apart()
                unit = self._used_units(heap, units)
        return region.take_new(units) if unit is None else unit

    def _former_units(self, heap: Heap, size_class: int, units: int) -> int | None:
        if units == 1:
            for i in reversed(range(len(heap.empty))):
                if self.region.former[heap.empty[i]] == size_class:
                    unit, last = heap.empty[i], heap.empty.pop()
                    if unit != last:
                        heap.empty[i] = last
                    return unit
        return self.region.take_former(size_class, units)

    def _used_units(self, heap: Heap, units: int) -> int | None:
        return heap.empty.pop() if units == 1 and heap.empty else self._ahead(heap, units, dirty=True)

    def _ahead(self, heap: Heap, units: int, *, dirty: bool) -> int | None:
        take = self.region.take_dirty if dirty else self.region.take_free
        if units == 1 and heap.acquired_count >= AHEAD_AFTER and not self._are_many():
            unit = take(AHEAD_UNITS, 1)
            if unit is not None:
                heap.empty += [unit + i for i in range(AHEAD_UNITS - 1, 0, -1)]
                return unit
        return take(units, units)

    def _give_up_idle(self, heap: Heap, refilled_class: int) -> None:
        for size_class in range(1, len(self.classes)):
            if size_class == refilled_class:
                continue
            bin = heap.bins[size_class]
            is_idle, bin.run = bin.run == 0, 0
            if is_idle:
                self.flush_bin(heap, size_class)
                for slab in [slab for slab in heap.partial[size_class] if slab.is_empty()]:
                    heap.partial[size_class].remove(slab)
                    self._retire(heap, slab)

    def _take_kept_apart(self) -> None:
        while self.kept:
            self._take_apart(self.kept.pop())

    # ---- Large objects -----------------------------------------------------------------------------------------------

    def alloc_large(self, heap: Heap, size: int, alignment: int) -> Run | Mapping:
        large: Run | Mapping
        if size <= self.policy.unit_bytes and alignment <= self.policy.unit_bytes and heap.empty:
            large = self.region.use_units(heap.empty.pop(), 1, size)
        else:
            large = self.region.alloc_large(size, alignment)
        self.after_growth()
        return large

    def free_large(self, heap: Heap, large: Run | Mapping) -> None:
        if isinstance(large, Run) and large.units == 1 and self._wants_unit(heap):
            self.region.at[large.unit] = None
            heap.empty.append(large.unit)
        else:
            self.region.free_large(large)
        self._take_turn()


def _fullness_of_words(slab: Slab) -> tuple[int, int]:
    """Slabs with nothing but their tail come last."""
    word = slab.fullest_word()
    return (slab.bits[word].bit_count() if word is not None else WORD_BITS + 1), slab.number
