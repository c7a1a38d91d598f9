"""Units of address space, page runs and mappings, and when free units go back to the kernel (src/region)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hakmem.model.memory import PAGE, Memory
from hakmem.model.slab import INLINE_WORDS, WORD_BITS, Slab

SUPER_SLAB_BYTES = 2 << 20
RUN_LIMIT_BYTES = 32 << 20
LEAST_MOVED_BYTES = 1 << 19
FEW_UNITS_BYTES = 4 * (64 << 10)
TURN_BYTES = 1 << 20
# SuperSlabs without what is wanted, before a search ends.
SCAN_LIMIT, DIRTY_SCAN_LIMIT, FORMER_SCAN_LIMIT = 64, 4, 16

# Where the tables lie: far from all blocks.
RECORDS, BIT_ROWS, SUPER_SLABS, MAPPINGS = 1 << 44, 1 << 45, 1 << 46, 1 << 50
RECORD_BYTES, SUPER_SLAB_RECORD_BYTES = 128, 616


@dataclass
class Run:
    """A large object in units of its own."""

    unit: int
    units: int
    bytes: int  # whole pages
    tail_is_purged: bool = False


@dataclass
class Mapping:
    start: int
    bytes: int


class Region:
    """Units are numbered from the bottom. Of each SuperSlab, masks say which are free and dirty, or free and fresh, and
    which of them have gone back to the kernel and were not used since."""

    def __init__(self, unit_bytes: int, memory: Memory) -> None:
        self.unit_bytes, self.memory = unit_bytes, memory
        self.per_super_slab = SUPER_SLAB_BYTES // unit_bytes
        self.row_bytes = unit_bytes // 16 // 8
        self.dirty: list[int] = []
        self.fresh: list[int] = []
        self.given: list[int] = []
        self.at: list[Slab | Run | None] = []  # what has a unit; of a run, of its first one
        self.former: list[int] = []  # the class of the slab that last began at a unit
        self.dirty_units = 0
        self.reused_pages = 0  # that had gone back
        self.next_mapping = MAPPINGS
        # Of slabs, in bytes and pages.
        self.slab_bytes = self.out_bytes = self.slab_holes = 0
        self.allowance = Allowance(self)
        self.has_background = False  # a thread gives free memory back, at the end of periods
        self.owed_units = self.released_units = 0
        self.place: int | None = None  # of a round: it goes on below this SuperSlab; None: at the top
        self.round_bytes = 0
        self.vain_below_units = 0  # after a round that brought nothing, the next one begins with so many dirty units

    # ---- Taking units ------------------------------------------------------------------------------------------------

    def grow(self) -> int:
        """Returns the number of a new SuperSlab."""
        self.dirty.append(0)
        self.fresh.append((1 << self.per_super_slab) - 1)
        self.given.append(0)
        self.at += [None] * self.per_super_slab
        self.former += [0] * self.per_super_slab
        number = len(self.dirty) - 1
        self.memory.touch(SUPER_SLABS + number * SUPER_SLAB_RECORD_BYTES, SUPER_SLAB_RECORD_BYTES)
        return number

    def take_dirty(self, count: int, alignment: int) -> int | None:
        dirty = [(i, mask) for i, mask in enumerate(self.dirty) if mask]
        return self._search(count, alignment, dirty, DIRTY_SCAN_LIMIT)

    def take_former(self, size_class: int, count: int) -> int | None:
        """Dirty ones that were a slab of the class."""
        dirty = ((i, self._former_mask(i, size_class, count)) for i, mask in enumerate(self.dirty) if mask)
        return self._search(count, count, dirty, FORMER_SCAN_LIMIT)

    def _former_mask(self, number: int, size_class: int, count: int) -> int:
        first, mask = number * self.per_super_slab, 0
        for position in range(0, self.per_super_slab, count):
            if self.former[first + position] == size_class:
                mask |= ((1 << count) - 1) << position
        return mask & self.dirty[number]

    def take_fresh(self, count: int, alignment: int) -> int | None:
        free = ((i, self.fresh[i]) for i in range(len(self.fresh)) if self.fresh[i] | self.dirty[i])
        return self._search(count, alignment, free, SCAN_LIMIT)

    def take_free(self, count: int, alignment: int) -> int | None:
        """Of any kind: first where there is surely a run that is long enough."""
        free = [(i, self.fresh[i] | self.dirty[i]) for i in range(len(self.fresh))]
        sure = 1 << (count + alignment - 2).bit_length()
        if sure > self.per_super_slab:
            sure = self.per_super_slab
        found = self._search(count, alignment, [(i, mask) for i, mask in free if runs(mask, sure)], len(free))
        return found if found is not None or sure == 1 else self._search(count, alignment, free, SCAN_LIMIT)

    def take_new(self, count: int) -> int:
        number = self.grow()
        self._take(number, (1 << count) - 1)
        return number * self.per_super_slab

    def _search(
        self, count: int, alignment: int, masks: Iterator[tuple[int, int]] | list[tuple[int, int]], limit: int
    ) -> int | None:
        for number, mask in masks:
            starts = runs(mask, count) & self._aligned(alignment)
            if starts:
                position = (starts & -starts).bit_length() - 1
                self._take(number, ((1 << count) - 1) << position)
                return number * self.per_super_slab + position
            limit -= 1
            if limit == 0:
                break
        return None

    def _aligned(self, alignment: int) -> int:
        return sum(1 << position for position in range(0, self.per_super_slab, alignment))

    def _take(self, number: int, mask: int) -> None:
        dirty = (mask & self.dirty[number]).bit_count()
        self.dirty[number] &= ~mask
        self.fresh[number] &= ~mask
        self.dirty_units -= dirty
        self.owed_units = max(0, self.owed_units - dirty)
        self.reused_pages += (mask & self.given[number]).bit_count() * (self.unit_bytes // PAGE)
        self.given[number] &= ~mask

    def _take_units(self, first: int, end: int) -> None:
        for number, mask in self._parts(first, end):
            self._take(number, mask)

    def _parts(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Of units first..end: the SuperSlabs, and the bits in them."""
        while first < end:
            number, position = divmod(first, self.per_super_slab)
            count = min(self.per_super_slab - position, end - first)
            yield number, ((1 << count) - 1) << position
            first += count

    def _is_free(self, unit: int) -> bool:
        number, position = divmod(unit, self.per_super_slab)
        return (self.fresh[number] | self.dirty[number]) >> position & 1 == 1

    def take_span(self, count: int, alignment: int) -> int:
        """Across the borders of SuperSlabs: the lowest, or at the upper end, with SuperSlabs made for it."""
        first = 0
        for unit in range(len(self.at)):
            if not self._is_free(unit):
                first = unit + 1
            elif first % alignment:
                first += alignment - first % alignment
            if unit + 1 - first >= count:
                break
        first = -(-first // alignment) * alignment
        while len(self.at) < first + count:
            self.grow()
        self._take_units(first, first + count)
        return first

    def extend(self, run: Run, units: int) -> bool:
        first, end = run.unit + run.units, run.unit + units
        if not all(self._is_free(unit) for unit in range(first, min(end, len(self.at)))):
            return False
        while len(self.at) < end:
            self.grow()
        self._take_units(first, end)
        return True

    # ---- Giving units back -------------------------------------------------------------------------------------------

    def release(self, first: int, count: int) -> None:
        for number, mask in self._parts(first, first + count):
            self.dirty[number] |= mask
        self.dirty_units += count
        self.at[first : first + count] = [None] * count

    def release_fresh(self, first: int, count: int, *, given: bool) -> None:
        for number, mask in self._parts(first, first + count):
            self.fresh[number] |= mask
            if given:
                self.given[number] |= mask
        self.at[first : first + count] = [None] * count

    def give_back(self, number: int, most: int) -> int:
        """The highest `most` dirty units of a SuperSlab go back to the kernel. Returns the bytes."""
        mask = self.dirty[number]
        for _ in range(mask.bit_count() - most):
            mask &= mask - 1
        count = mask.bit_count()
        self.dirty[number] &= ~mask
        self.fresh[number] |= mask
        self.given[number] |= mask
        self.dirty_units -= count
        self.owed_units = max(0, self.owed_units - count)
        left = mask
        while left:
            position = (left & -left).bit_length() - 1
            self.memory.purge((number * self.per_super_slab + position) * self.unit_bytes, self.unit_bytes)
            left &= left - 1
        return count * self.unit_bytes

    # ---- Decay: calls of the program give back what is beyond the allowance (src/region/decay.c) ---------------------

    def after_release(self, units: int) -> None:
        if self.has_background:
            return
        self.allowance.look()
        allowed = self.allowance.bytes // self.unit_bytes
        excess = self.dirty_units - allowed
        if excess > FEW_UNITS_BYTES // self.unit_bytes and self.dirty_units >= self.vain_below_units:
            self.owed_units = max(self.owed_units, excess)
        if self.owed_units and units > self.released_units:
            self.released_units = units

    def pay(self) -> None:
        """At the end of each call that is no hit: a part of what is owed."""
        most = max(self.released_units, TURN_BYTES // self.unit_bytes)
        if self.released_units >= TURN_BYTES // self.unit_bytes:
            self.released_units = 0
        owed = min(self.owed_units, most)
        given = self._pay_from_place(owed)
        paid = given // self.unit_bytes
        if paid < owed and self.owed_units:
            given += self._pay_from_place(owed - paid)
        self.allowance.gave(given)

    def _pay_from_place(self, units: int) -> int:
        below, given, want = len(self.dirty) if self.place is None else self.place, 0, units * self.unit_bytes
        while given < want:
            number = next((i for i in range(min(below, len(self.dirty)) - 1, -1, -1) if self.dirty[i]), None)
            if number is None:
                below = 0
                break
            left = want - given
            is_part = left < SUPER_SLAB_BYTES
            given += self.give_back(number, -(-left // self.unit_bytes) if is_part else self.per_super_slab)
            below = number + 1 if is_part and given >= want else number
            if below == 0:
                break
        self.round_bytes += given
        if below == 0:
            if self.round_bytes == 0:
                self.owed_units = 0
                self.vain_below_units = self.dirty_units + self.dirty_units // 16 + FEW_UNITS_BYTES // self.unit_bytes
            else:
                self.vain_below_units = 0
            self.round_bytes = 0
        self.place = below or None
        return given

    # ---- Tables ------------------------------------------------------------------------------------------------------

    def touch_record(self, unit: int) -> None:
        self.memory.touch(RECORDS + unit * RECORD_BYTES, RECORD_BYTES)

    def touch_bits(self, slab: Slab) -> None:
        if slab.block_count > INLINE_WORDS * WORD_BITS:
            self.memory.touch(BIT_ROWS + slab.unit * self.row_bytes, len(slab.bits) * 8)

    # ---- Large objects (src/region/large.c) --------------------------------------------------------------------------

    def units_for(self, size: int) -> int:
        return -(-size // self.unit_bytes)

    def start_of(self, large: Run | Mapping) -> int:
        return large.unit * self.unit_bytes if isinstance(large, Run) else large.start

    def use_units(self, unit: int, units: int, size: int) -> Run:
        run = Run(unit, units, pages(size))
        self.at[unit] = run
        self.touch_record(unit)
        return run

    def alloc_large(self, size: int, alignment: int) -> Run | Mapping:
        if size > RUN_LIMIT_BYTES or alignment > SUPER_SLAB_BYTES:
            return self.map(size, alignment)
        units, unit_alignment = self.units_for(size), max(1, alignment // self.unit_bytes)
        if units > self.per_super_slab:
            return self.use_units(self.take_span(units, unit_alignment), units, size)
        unit = self.take_dirty(units, unit_alignment)
        if unit is None:
            unit = self.take_free(units, unit_alignment)
        if unit is None:
            unit = self.take_new(units)
        return self.use_units(unit, units, size)

    def map(self, size: int, alignment: int) -> Mapping:
        start = -(-self.next_mapping // alignment) * alignment
        self.next_mapping = start + pages(size) + SUPER_SLAB_BYTES
        return Mapping(start, pages(size))

    def free_large(self, large: Run | Mapping) -> None:
        if isinstance(large, Mapping):
            self.memory.purge(large.start, large.bytes)
            return
        self.release(large.unit, large.units)
        self.after_release(large.units)

    def resize_large(self, large: Run | Mapping, size: int, small_max: int) -> Run | Mapping | None:
        """None: the caller is to copy."""
        have = large.bytes
        if pages(size) == have:
            return large
        if size <= small_max:
            return None
        if isinstance(large, Mapping):
            if pages(size) < have:
                self.memory.purge(large.start + pages(size), have - pages(size))
            elif pages(size) > have:
                moved = self.map(size, SUPER_SLAB_BYTES)
                self.memory.move(large.start, have, moved.start)
                return moved
            large.bytes = pages(size)
            return large
        units = self.units_for(size)
        if units > large.units and not self.extend(large, units):
            return self._move_run(large, size)
        if units < large.units:
            self.release(large.unit + units, large.units - units)
            self.after_release(large.units - units)
        large.units, large.bytes, large.tail_is_purged = units, pages(size), False
        return large

    def _move_run(self, run: Run, size: int) -> Mapping | None:
        """By changing page tables, unless it is better copied into what lies free."""
        is_better_copied = (
            size >= run.bytes + run.bytes // 2
            and size <= RUN_LIMIT_BYTES
            and self.dirty_units * self.unit_bytes // 2 >= size
        )
        if run.bytes < LEAST_MOVED_BYTES or is_better_copied:
            return None
        moved = self.map(size, SUPER_SLAB_BYTES)
        self.memory.move(run.unit * self.unit_bytes, run.units * self.unit_bytes, moved.start)
        self.release_fresh(run.unit, run.units, given=False)
        return moved


class Allowance:
    """How much free memory may stay: as much as the program has shown to use again (src/region/allowance.c). A replay
    takes less than a period: what is remembered for some of them is remembered."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self.bytes = 0
        self.seen_pages = 0  # that had been used again at the last look
        self.away = self.most_at_once = self.free_left = 0
        self.pinned = self.pinned_at_out = self.most_out = 0

    def gave(self, given: int) -> None:
        if given == 0 or self.region.has_background:
            return
        if self.away == 0:
            self._take_used_bytes()
            self.most_at_once = 0
        self.away += given
        self.free_left = max(0, self.free_left - given)
        self.most_at_once = max(self.most_at_once, self.away + self.free_left)

    def look(self) -> None:
        self.free_left = self.region.dirty_units * self.region.unit_bytes + self.loose_in_slabs()
        if self.away == 0:
            return
        used = min(self._take_used_bytes(), self.away)
        if used:
            self.bytes = max(self.bytes, min(self.most_at_once, self.bytes + used))
            self.away -= used

    def _take_used_bytes(self) -> int:
        """Since the last look."""
        seen, self.seen_pages = self.seen_pages, self.region.reused_pages
        return (self.seen_pages - seen) * PAGE

    def free_in_slabs(self) -> int:
        region = self.region
        return max(0, region.slab_bytes - region.out_bytes - region.slab_holes * PAGE)

    def pin(self, out_bytes: int) -> None:
        self.pinned_at_out = self.most_out = out_bytes
        self.pinned = self.free_in_slabs()

    def grew(self, out_bytes: int) -> None:
        if self.pinned:
            self.most_out = max(self.most_out, out_bytes)

    def loose_in_slabs(self) -> int:
        return max(0, self.free_in_slabs() - self._still_pinned())

    def _still_pinned(self) -> int:
        out = self.region.out_bytes
        if self.pinned == 0 or out <= 0:
            return 0
        left = max(0, self.pinned - max(0, self.most_out - self.pinned_at_out))
        if out >= self.pinned_at_out:
            return left
        share = out * 256 // self.pinned_at_out
        return left * share // 256 * share // 256


def pages(size: int) -> int:
    """In bytes."""
    return -(-size // PAGE) * PAGE


def runs(mask: int, count: int) -> int:
    """Where so many set bits in a row begin."""
    length = 1
    while length < count and mask:
        step = min(length, count - length)
        mask &= mask >> step
        length += step
    return mask
