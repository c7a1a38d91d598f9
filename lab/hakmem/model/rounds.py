"""Shrinking: a program that frees more than it allocates gives back what it has emptied (src/pool/shrink.h), by turns
that look for holes in slabs (src/pool/purge.c)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hakmem.model.classes import LARGEST_SLAB_BYTES
from hakmem.model.heap import SHRUNK_SLOTS, Heap
from hakmem.model.memory import PAGE
from hakmem.model.region import Run
from hakmem.model.slab import Slab

if TYPE_CHECKING:
    from hakmem.model.allocator import Allocator

STEP_SHIFT, LEAST_STEP_BYTES, MOST_VAIN_ROUNDS = 4, 4096, 2
UNTOLD_BYTES, UNTOLD_AT_THE_END_BYTES = 1 << 16, 1 << 12
BINS_SHARE, LITTLE_SHARE, BLOCKS_OF_TURN = 16, 16, 1024
SMALL_BINS_BYTES, LEAST_PUT_BYTES = 1 << 14, 1 << 20
TURN_COST, COST_OF_STEP, COST_OF_PAGE, MOST_STEPS = 512, 2, 4, 256


class Rounds:
    """`shrink_at`: when so few bytes are handed out, a round begins. `unit`: the next one whose holes are looked at, or
    None between rounds."""

    def __init__(self, allocator: Allocator) -> None:
        self.allocator, self.region = allocator, allocator.region
        self.shrink_at = 0
        self.growths = self.vain = 0
        self.unit: int | None = None
        self.given = self.want = self.out_at_begin = 0

    def _may_shrink(self) -> bool:
        return len(self.region.dirty) >= 2 and not self.region.has_background

    def _step_at(self, out: int) -> int:
        step = max(out >> STEP_SHIFT, LEAST_STEP_BYTES) << self.vain
        return max(out // 2, LEAST_STEP_BYTES) if self.vain and 0 < out // 2 < step else step

    def count(self, heap: Heap, change: int) -> None:
        """Slabs have handed out so many bytes, or got them back."""
        heap.out_bytes += change
        small = heap.small_bins_bytes
        if small:
            if change > 0:
                heap.small_bins_bytes -= change
            else:
                heap.small_bins_put_bytes += change
            if heap.small_bins_bytes <= 0 or heap.small_bins_put_bytes <= 0:
                heap.small_bins_bytes = 0
        if abs(heap.out_bytes) >= (UNTOLD_AT_THE_END_BYTES if small else UNTOLD_BYTES):
            self._add(heap)

    def tell(self, heap: Heap) -> int:
        """What it has not told yet. Returns that."""
        change, heap.out_bytes = heap.out_bytes, 0
        self.region.out_bytes += change
        out = self.region.out_bytes
        if change > 0 and out - self._step_at(out) > self.shrink_at:
            self.shrink_at = out - self._step_at(out)
            if out > 0:
                self.region.allowance.grew(out)
            self.growths += 1
        return change

    def _add(self, heap: Heap) -> None:
        change = self.tell(heap)
        if heap.growths != self.growths:
            heap.small_bins_bytes = 0
        if change <= 0 and self.region.out_bytes <= self.shrink_at and self._may_shrink():
            heap.is_shrink_due = True

    def _excess(self, in_slabs: int) -> int:
        elsewhere = self.region.dirty_units * self.region.unit_bytes
        return max(0, in_slabs - max(0, self.region.allowance.bytes - elsewhere))

    def _begin(self, heap: Heap) -> bool:
        out, allowance = self.region.out_bytes, self.region.allowance
        if self.unit is not None:
            return False
        heap.is_shrink_due = False
        if not self._may_shrink():
            return False
        allowance.look()
        if out > self.shrink_at or self._excess(allowance.loose_in_slabs()) == 0:
            return False
        came_back = self.shrink_at - out + self._step_at(out)
        was_vain = self.given < came_back // LITTLE_SHARE
        self.vain = min(self.vain + 1, MOST_VAIN_ROUNDS) if was_vain else 0
        heap.next_to_shrink = 1
        heap.is_shrink_due = True
        return True

    def go_on(self, heap: Heap) -> None:
        if heap.next_to_shrink == 0 and not self._begin(heap):
            return
        left = BLOCKS_OF_TURN
        while heap.next_to_shrink < len(heap.bins):
            left -= self.allocator.flush_bin(heap, heap.next_to_shrink, left)
            if left == 0:
                return
            heap.next_to_shrink += 1
        heap.next_to_shrink = 0
        self.allocator.release_kept_units(heap)
        for partial in heap.partial:
            for slab in partial:
                if slab.claimed:
                    self.region.touch_bits(slab)
                slab.unclaim_word()
        self.region.after_release(0)
        heap.is_shrink_due = False
        self._add(heap)
        out = self.region.out_bytes
        want = self._excess(self.region.allowance.free_in_slabs())
        self._keep_bins_small(heap, out)
        if want:
            self.want, self.given, self.out_at_begin, self.unit = want, 0, out, 0
        self.shrink_at = out - self._step_at(out)

    def _keep_bins_small(self, heap: Heap, out: int) -> None:
        most = max(0, out) // BINS_SHARE
        heap.small_bins_bytes = SMALL_BINS_BYTES
        heap.small_bins_put_bytes = max(out // 4, LEAST_PUT_BYTES)
        heap.growths = self.growths
        if heap.slots_bytes <= most:
            return
        share = heap.slots_bytes // (most // 256 + 1)
        for size_class in range(1, len(heap.bins)):
            slots = heap.bins[size_class].slots * 256 // (share + 1)
            self.allocator.sizes.shrink_to(heap, size_class, max(slots, SHRUNK_SLOTS))

    def turn(self) -> None:
        region, given, cost = self.region, 0, 0
        assert self.unit is not None
        is_last = False
        usual = LARGEST_SLAB_BYTES // region.unit_bytes
        for _ in range(MOST_STEPS):
            if cost >= TURN_COST:
                break
            unit = self.unit
            if unit >= len(region.at):
                is_last = True
                break
            number, position = divmod(unit, region.per_super_slab)
            is_free = position == 0 and region.dirty[number] | region.fresh[number] == (1 << region.per_super_slab) - 1
            self.unit = unit + (region.per_super_slab if is_free else usual)
            if is_free:
                continue
            purged = self._purge_units(unit, self.unit)
            cost += COST_OF_STEP + purged // PAGE * COST_OF_PAGE
            given += purged
        if is_last:
            region.allowance.pin(self.out_at_begin)
        self.given += given
        if is_last or self.given >= self.want:
            self.unit = None
        region.allowance.gave(given)

    def _purge_units(self, unit: int, end: int) -> int:
        given = 0
        while unit < end:
            here = self.region.at[unit]
            if isinstance(here, Slab):
                given += self._purge_holes(here)
                unit = here.unit + here.units
                continue
            if isinstance(here, Run) and not here.tail_is_purged:
                tail = here.units * self.region.unit_bytes - here.bytes
                here.tail_is_purged = True
                self.region.memory.purge(here.unit * self.region.unit_bytes + here.bytes, tail)
                given += tail
            unit += 1
        return given

    def _purge_holes(self, slab: Slab) -> int:
        free, given = slab.free_bits(), 0
        if not free:
            return 0
        for page in range(slab.units * self.region.unit_bytes // PAGE):
            if slab.purged_pages >> page & 1:
                continue
            first = page * PAGE // slab.block_bytes
            end = min(((page + 1) * PAGE - 1) // slab.block_bytes + 1, slab.block_count)
            blocks = ((1 << max(0, end - first)) - 1) << first
            if free & blocks == blocks:
                slab.purged_pages |= 1 << page
                self.region.slab_holes += 1
                self.region.memory.purge(slab.start + page * PAGE, PAGE)
                given += PAGE
        return given
