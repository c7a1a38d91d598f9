"""The model of placement on cases that are worked out by hand, against real replays, and with bad input."""

from __future__ import annotations

import json
import lzma
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hakmem import calls, cli, packing, placement, replays, trace
from hakmem.calls import Call
from hakmem.model.allocator import Allocator
from hakmem.model.classes import SMALL_MAX, Classes
from hakmem.model.heap import Heap
from hakmem.model.memory import PAGE, Memory, Resident
from hakmem.model.policy import POLICIES, TODAY, Policy
from hakmem.model.program import Program
from hakmem.model.region import Region, Run, runs
from hakmem.trace import Kind, TraceError, Writer

KIB, MIB = 1 << 10, 1 << 20
UNIT = 64 * KIB
BY_NAME = {policy.name: policy for policy in POLICIES}
# What hakmem has beside blocks: a page of slab records, one of SuperSlab records, and a heap's record of 8256 bytes,
# whose third page also has the first slots.
TABLES = 5


def allocs(sizes: Sequence[int], first: int = 1) -> list[Call]:
    return [Call(0, 0, first + i, size) for i, size in enumerate(sizes)]


def frees(blocks: Sequence[int]) -> list[Call]:
    return [Call(0, block, 0) for block in blocks]


def after(made: Sequence[Call], policy: Policy = TODAY) -> Program:
    program = Program(policy)
    program.make(made)
    return program


def pages_of_blocks(program: Program) -> int:
    """Resident ones, without tables."""
    return sum(page < 1 << 30 for page in program.allocator.memory.resident)


# ---- Today's ---------------------------------------------------------------------------------------------------------


def test_the_first_block_costs_its_page_and_the_tables() -> None:
    program = after(allocs([24]))
    assert program.address_of(1) == 0
    assert program.allocator.memory.total() == Resident((1 + TABLES) * PAGE, (1 + TABLES) * PAGE)


def test_a_bin_gets_three_eighths_of_its_slots() -> None:
    """Eight slots at first, so three blocks; then sixteen, and six."""
    program = after(allocs([24]))
    bin = program.heaps[0].bins[2]
    assert bin.slots == 8 and bin.blocks == [64, 32]
    program.make(allocs([24] * 3, first=2))
    assert bin.slots == 16 and len(bin.blocks) == 5


def test_blocks_of_a_class_follow_each_other_from_the_start_of_a_unit() -> None:
    program = after(allocs([24, 40] * 100))
    assert [program.address_of(1 + 2 * i) for i in range(100)] == [32 * i for i in range(100)]
    assert [program.address_of(2 + 2 * i) for i in range(100)] == [UNIT + 48 * i for i in range(100)]
    assert pages_of_blocks(program) == 1 + 2  # 3200 and 4800 bytes


def test_only_pages_that_are_written_are_resident() -> None:
    program = after(allocs([20 * KIB]))  # in the block of 24 KiB that serves its group
    assert program.allocator.classes.block_bytes[program.allocator.classes.serving(20 * KIB, 1)] == 24 * KIB
    assert pages_of_blocks(program) == 5


def test_what_was_freed_last_is_used_next() -> None:
    program = after(allocs([100] * 10) + frees([3, 7]) + allocs([100, 100], first=11))
    assert program.address_of(11) == 6 * 112 and program.address_of(12) == 2 * 112


def test_blocks_that_are_known_to_live_long_lie_apart() -> None:
    """Blocks 2 and 3 are freed, the others never."""
    made = [*allocs([100] * 3), *frees([2, 3]), *allocs([100], first=4), *allocs([100], first=5)]
    program = after(made, replace(BY_NAME["lifetimes"], apart_after=1 / 2))
    assert program.long_lived == {1, 4, 5}
    assert program.address_of(1) == 0 and program.address_of(4) == 112 and program.address_of(5) == 224
    assert pages_of_blocks(program) == 2  # one of each sort
    assert after(made).address_of(4) == 2 * 112  # where 3 was, otherwise


def test_a_realloc_stays_while_half_of_the_block_is_used() -> None:
    program = after([Call(0, 0, 1, 1000), Call(0, 1, 2, 600), Call(0, 2, 3, 500)])
    assert program.address_of(3) == UNIT  # 600 of 1024 bytes is more than half, 500 is not: the class of 512
    assert 2 not in program.blocks


def test_a_page_run_goes_back_but_for_a_few_units() -> None:
    """A MiB is more than four units, and nothing is allowed to lie free yet."""
    program = after(allocs([MIB]))
    assert pages_of_blocks(program) == 256
    program.make(frees([1]))
    assert pages_of_blocks(program) == 0
    assert program.allocator.memory.total().peak == (256 + TABLES) * PAGE
    small = after(allocs([200 * KIB]) + frees([1]))
    assert pages_of_blocks(small) == 50  # four units


def test_a_run_grows_into_free_units_behind_it() -> None:
    program = after([Call(0, 0, 1, 100 * KIB), Call(0, 1, 2, 300 * KIB)])
    assert program.address_of(2) == 0 and pages_of_blocks(program) == 75


def test_an_object_above_the_limit_of_runs_has_a_mapping_of_its_own() -> None:
    program = after(allocs([33 * MIB]))
    assert program.address_of(1) >= 1 << 50 and pages_of_blocks(program) == 0
    peak = program.allocator.memory.total().peak
    assert peak >= 33 * MIB
    program.make(frees([1]))
    assert program.allocator.memory.total().end <= MIB and program.allocator.memory.total().peak == peak


def test_looks_are_between_calls() -> None:
    """A realloc that moves has both blocks for a moment; it is two events, and no look falls into it."""
    made = [Call(0, 0, 1, 20 * KIB), Call(0, 1, 2, 30 * KIB), Call(0, 2, 0)]
    assert Program(TODAY).make(made).peak == Program(TODAY).make(made, 1).peak  # a bin keeps what was touched
    grown = [Call(0, 0, 1, MIB), Call(0, 0, 3, 200), Call(0, 1, 2, 2 * MIB), Call(0, 2, 0)]
    looks = [Program(TODAY).make(grown, every).peak // PAGE for every in (1, 2, 3, 4, 5)]
    assert looks[0] == looks[3] and looks[1] == looks[3] and looks[2] < 300 and looks[4] < 300


def test_a_freed_heap_of_small_blocks_goes_back() -> None:
    count = 64 * KIB  # 4 MiB of blocks of 64 bytes
    program = after(allocs([64] * count) + frees(range(1, count + 1)))
    total = program.allocator.memory.total()
    assert total.peak >= 4 * MIB and total.end < MIB


def test_the_last_slab_of_a_class_stays() -> None:
    allocator, heap, size_class = heap_with_free_blocks(TODAY, 32 * KIB, 24, [block * 32 * KIB for block in range(24)])
    assert len(heap.partial[size_class]) == 1
    assert allocator.region.slab_bytes == 256 * KIB and sum(unit is None for unit in allocator.region.at) == 32 - 4


def test_pages_without_a_block_in_use_go_back() -> None:
    """Of ten pages of 64 blocks one has a block that stays."""
    count = 64 * KIB
    program = after(allocs([64] * count) + frees([block for block in range(1, count + 1) if block % 640]))
    assert program.allocator.memory.total().peak >= 4 * MIB
    assert 102 <= pages_of_blocks(program) < 256


def test_a_run_that_cannot_grow_is_moved_by_page_tables_unless_enough_lies_free() -> None:
    made = [Call(0, 0, 1, MIB), Call(0, 0, 2, MIB)]
    moved = after([*made, Call(0, 1, 3, 2 * MIB)])
    assert moved.address_of(3) >= 1 << 50 and pages_of_blocks(moved) == 256
    copied = after([*made, Call(0, 0, 3, 4 * MIB)])
    copied.allocator.region.has_background = True  # what is freed stays
    copied.make([Call(0, 3, 0), Call(0, 1, 4, 2 * MIB)])
    assert copied.address_of(4) == 2 * MIB and pages_of_blocks(copied) == (1 + 1 + 4) * 256


def test_a_heap_of_two_threads_and_8_mib_leaves_it_to_the_background() -> None:
    many = allocs([MIB] * 8, first=2)
    alone = after([*allocs([64]), *many, *frees(range(2, 10))])
    assert pages_of_blocks(alone) < 64
    program = after([Call(0, 0, 1, 64)])
    program.heaps[1] = program.allocator.begin_thread()
    program.make([*many, *frees(range(2, 10))])
    assert pages_of_blocks(program) == 8 * 256 + 1


def test_a_full_slab_is_the_pools_when_another_thread_frees_into_it() -> None:
    blocks = [block * 32 * KIB for block in range(4)]
    allocator, heap, size_class = heap_with_free_blocks(TODAY, 32 * KIB, 32, [])
    other = allocator.begin_thread()
    other.bins[size_class].blocks = blocks[:1]
    allocator.flush_bin(other, size_class)
    assert len(allocator.pool[size_class]) == 1 and not other.partial[size_class]
    assert allocator.alloc_missed(other, size_class) == blocks[0]
    assert not allocator.pool[size_class]


def test_a_heap_of_256_slabs_takes_four_units_at_a_time() -> None:
    """The 257th is the first unit of a new SuperSlab."""
    for slabs, kept in ((255, 0), (258, 3)):
        program = after(allocs([64] * (1024 * slabs - 512)))
        assert len(program.heaps[0].empty) == kept


def test_classes_that_are_idle_give_up_what_they_keep_before_the_heap_grows() -> None:
    program = after([*allocs([64]), *frees([1])])
    heap = program.heaps[0]
    idle = heap.bins[4]
    assert len(idle.blocks) == 3
    idle.run = 0  # no miss since the last time
    program.make(allocs([96] * 682 * 32, first=2))  # 32 slabs: the last one gets the unit of the class of 64 bytes
    assert len(program.allocator.region.dirty) == 1 and idle.blocks == []


def test_threads_that_are_many_hold_slabs_of_few_classes() -> None:
    allocator = Allocator(TODAY)
    heap = allocator.begin_thread()
    allocator.heaps_in_use = allocator.few_heaps + 1
    for size_class in range(1, 10):
        allocator.alloc_missed(heap, size_class)
    assert [len(slabs) for slabs in heap.partial[1:10]] == [0, 1, 1, 1, 1, 1, 1, 1, 1]
    assert len(allocator.pool[1]) == 1


def test_large_objects_are_aligned() -> None:
    made = [Call(0, 0, 1, 100 * KIB), Call(0, 0, 2, 100 * KIB, 256 * KIB), Call(0, 0, 3, 3 * MIB, 512 * KIB)]
    program = after(made)
    assert [program.address_of(block) for block in (1, 2, 3)] == [0, 256 * KIB, 512 * KIB]


def test_threads_have_heaps_of_their_own_and_the_next_one_gets_a_kept_one() -> None:
    made = [Call(0, 0, 1, 64), Call(1, 0, 2, 64), Call(1, 2, 0), Call(2, 0, 3, 64), Call(0, 1, 0)]
    program = Program(TODAY)
    program.make(made)
    assert program.allocator.heap_count == 2


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_no_two_blocks_share_a_byte(policy: Policy) -> None:
    chance = random.Random(7)
    program = Program(policy)
    sizes: dict[int, tuple[int, int]] = {}
    made: list[Call] = []
    for block in range(1, 6000):
        thread = chance.randrange(3)
        size = round(2 ** chance.uniform(0, 17))
        alignment = chance.choice([1] * 9 + [64, 4096])
        if sizes and chance.random() < 0.48:
            old = chance.choice(list(sizes))
            del sizes[old]
            again = chance.random() < 0.3
            made.append(Call(thread, old, block if again else 0, size))
            if again:
                sizes[block] = size, 1
        else:
            made.append(Call(thread, 0, block, size, alignment))
            sizes[block] = size, alignment
    program.make(made)
    places = sorted((program.address_of(block), size) for block, (size, _) in sizes.items())
    assert all(start + size <= next_start for (start, size), (next_start, _) in zip(places, places[1:], strict=False))
    for block, (size, alignment) in sizes.items():
        start = program.address_of(block)
        assert start % max(alignment, 16) == 0
        touched = range(start // PAGE, (start + size - 1) // PAGE + 1)
        assert program.allocator.memory.resident.issuperset(touched)


# ---- Policies --------------------------------------------------------------------------------------------------------


def heap_with_free_blocks(policy: Policy, size: int, count: int, free: Sequence[int]) -> tuple[Allocator, Heap, int]:
    """All of `count` blocks in use but some, none of which is in a bin. Slabs are held in the order of `free`, the last
    one first."""
    allocator = Allocator(policy)
    heap = allocator.begin_thread()
    size_class = allocator.classes.serving(size, 1)
    bin = heap.bins[size_class]
    for _ in range(count):
        if bin.blocks:
            bin.blocks.pop()
        else:
            allocator.alloc_missed(heap, size_class)
    assert not bin.blocks
    bin.blocks = list(free)
    allocator.flush_bin(heap, size_class)
    return allocator, heap, size_class


@pytest.mark.parametrize(
    ("name", "expected"), [("today", 16), ("fullest-word", 8), ("fullest-slab", 8), ("oldest-slab", 0)]
)
def test_where_a_refill_takes_blocks_from(name: str, expected: int) -> None:
    """Slabs of eight blocks of 32 KiB: three blocks of the first are free, one of the second, two of the third."""
    free = [block * 32 * KIB for block in (0, 1, 2, 8, 16, 17)]
    allocator, heap, size_class = heap_with_free_blocks(BY_NAME[name], 32 * KIB, 32, free)
    assert allocator.alloc_missed(heap, size_class) == expected * 32 * KIB


@pytest.mark.parametrize(("name", "expected"), [("fullest-word", 67), ("fullest-slab", 128 + 70)])
def test_a_full_word_lies_in_a_slab_that_is_not_the_fullest(name: str, expected: int) -> None:
    """Slabs of two words: of the first slab twenty blocks of the first word are free, and one of the second; of the
    other slab five of its second word."""
    free = [67, *range(20), *range(128 + 70, 128 + 75)]
    allocator, heap, size_class = heap_with_free_blocks(BY_NAME[name], 512, 256, [block * 512 for block in free])
    assert allocator.alloc_missed(heap, size_class) == expected * 512


@pytest.mark.parametrize(("name", "kept"), [("today", [65]), ("flush-emptiest", [3])])
def test_what_a_flush_keeps(name: str, kept: list[int]) -> None:
    """Block 3 lies in a word that is in use, 64 and 65 in one with thirty free blocks."""
    free = [block * 512 for block in range(90, 120)]
    allocator, heap, size_class = heap_with_free_blocks(BY_NAME[name], 512, 256, free)
    bin = heap.bins[size_class]
    bin.blocks = [block * 512 for block in (3, 64, 65)]
    allocator.put_oldest(heap, size_class, 2)
    assert bin.blocks == [block * 512 for block in kept]


@pytest.mark.parametrize(("name", "unit"), [("today", 64 * KIB), ("units-32k", 32 * KIB), ("units-16k", 16 * KIB)])
def test_units(name: str, unit: int) -> None:
    program = after(allocs([24, 40, 3000]), BY_NAME[name])
    assert [program.address_of(block) for block in (1, 2)] == [0, unit]
    classes = Classes(BY_NAME[name])
    slabs = [units * unit for units in classes.unit_count[1:]]
    assert min(slabs) == unit and max(slabs) == 256 * KIB
    assert all(slab >= min(8 * size, 256 * KIB) for slab, size in zip(slabs, classes.block_bytes[1:], strict=True))


@pytest.mark.parametrize(("name", "slots"), [("today", 256), ("small-bins", 64)])
def test_how_large_bins_grow(name: str, slots: int) -> None:
    """A slot for each 192 bytes: of 48 KiB, or of 12."""
    program = after(allocs([64] * 3000) + frees(range(1, 3001)), BY_NAME[name])
    assert program.heaps[0].bins[4].slots == slots


@pytest.mark.parametrize(
    ("name", "expected"), [("today", "1234 34 34 34 34 1234"), ("hasty-bins", "1234 34 1234 1234 1")]
)
def test_how_soon_a_bin_gives_up(name: str, expected: str) -> None:
    """A flush leaves half of four slots, until flushes in a row are no chance any more."""
    program = after(allocs([32 * KIB] * 16), BY_NAME[name])
    heap = program.heaps[0]
    bin = heap.bins[program.allocator.classes.serving(32 * KIB, 1)]
    assert (len(bin.blocks), bin.slots) == (0, 4)
    heap.small_bins_bytes = heap.small_bins_put_bytes = 1 << 40  # bins don't grow
    filled = ""
    for block in range(1, len(expected.replace(" ", "")) + 1):
        program.make(frees([block]))
        filled += str(len(bin.blocks))
    assert filled == expected.replace(" ", "")


def test_classes() -> None:
    today, fine = Classes(TODAY), Classes(BY_NAME["fine-classes"])
    assert len(today) == 72 + 1
    for size, wide, narrow in (
        (20, 32, 32),
        (257, 288, 272),
        (600, 640, 608),
        (1025, 1536, 1536),
        (32768, 32768, 32768),
    ):
        assert today.block_bytes[today.serving(size, 1)] == wide
        assert fine.block_bytes[fine.serving(size, 1)] == narrow
    apart = Classes(BY_NAME["no-groups"])
    assert apart.block_bytes[apart.serving(1025, 1)] == 1152
    assert today.block_bytes[today.serving(100, 64)] == 128 and today.serving(100, 2 * SMALL_MAX) == 0


@pytest.mark.parametrize(("name", "opens"), [("today", 5), ("late-groups", 17)])
def test_when_a_group_of_sizes_is_opened(name: str, opens: int) -> None:
    """When a heap has more than so many slabs of 42 blocks of 1536 bytes."""
    program = Program(BY_NAME[name])
    count = 0
    while not program.allocator.classes.open_groups:
        count += 1
        program.make(allocs([1100], first=count))
    assert 42 * (opens - 1) <= count <= 42 * opens
    assert program.allocator.region.slab_bytes == opens * 42 * 1536


# ---- Parts of the model ----------------------------------------------------------------------------------------------


def test_runs_of_bits() -> None:
    assert runs(0b111011, 1) == 0b111011
    assert runs(0b111011, 2) == 0b011001
    assert runs(0b111011, 3) == 0b001000
    assert runs(0b111011, 4) == 0


def test_the_lowest_units_are_taken_first_dirty_ones_before_fresh_ones() -> None:
    region = Region(UNIT, Memory())
    assert region.take_dirty(1, 1) is None and region.take_free(1, 1) is None
    assert region.take_new(1) == 0
    assert region.take_free(2, 2) == 2 and region.take_free(1, 1) == 1 and region.take_free(4, 4) == 4
    region.release(2, 2)
    assert region.take_fresh(1, 1) == 8 and region.take_dirty(1, 1) == 2
    assert region.dirty_units == 1
    assert region.take_span(40, 1) == 9
    assert len(region.dirty) == 2
    assert region.take_span(1, 1) == 3 and region.take_span(1, 1) == 49
    region.release(9, 40)
    assert region.take_span(40, 8) == 56


def test_what_is_used_again_may_stay() -> None:
    """Rent or buy: a burst that comes again and again pays for its pages once or twice."""
    program = Program(TODAY)
    resident = []
    for burst in range(4):
        program.make(allocs([MIB], first=burst + 1))
        program.make(frees([burst + 1]))
        resident.append(pages_of_blocks(program))
    assert resident[0] == 0 and resident[-1] == 256


def test_one_thread_that_works_in_bursts_has_a_background_thread() -> None:
    """It begins when 2 MiB that had gone back are used again, in a heap of 8 MiB. From then on all stays."""
    program = after([*allocs([MIB] * 4), *frees(range(1, 5))])
    assert pages_of_blocks(program) == 0
    program.make(allocs([MIB] * 12, first=5))
    program.make(frees(range(5, 17)))
    assert pages_of_blocks(program) == 12 * 256


def test_the_tail_of_a_run_goes_back_in_a_round() -> None:
    program = after(allocs([100 * KIB]))
    run = program.blocks[1]
    assert isinstance(run, Run) and not run.tail_is_purged
    rounds = program.allocator.rounds
    rounds.unit, rounds.want = 0, 1 << 40
    program.allocator.memory.touch(127 * KIB, 1)
    rounds.turn()
    assert run.tail_is_purged and pages_of_blocks(program) == 25 and rounds.unit is None


# ---- Bounds ----------------------------------------------------------------------------------------------------------


def test_the_least_is_what_is_alive_rounded_to_16_bytes_and_then_to_pages() -> None:
    made = allocs([100] * 36) + allocs([1], first=100) + frees(range(1, 37))  # 36 * 112 + 16 bytes
    assert packing.least(made) == Resident(PAGE, PAGE)
    assert packing.least(made[:37] + allocs([50], first=101)).peak == 2 * PAGE  # 64 bytes more: 4112
    assert packing.least([Call(0, 0, 1, 4096), Call(0, 1, 2, 8192)]) == Resident(2 * PAGE, 2 * PAGE)


def test_hindsight_puts_blocks_together_that_die_together() -> None:
    """Every other block dies soon: today both pages stay, with hindsight one. Blocks of no bytes are there for time."""
    made = [*allocs([2048] * 4), *frees([1, 3]), *allocs([0] * 20, first=5)]
    assert packing.with_hindsight(made) == packing.least(made) == Resident(2 * PAGE, PAGE)
    assert pages_of_blocks(after(made)) == 2


def test_hindsight_moves_nothing() -> None:
    """The half of a page that becomes free is too small for the last block."""
    made = [*allocs([2048, 2048, 2048]), *frees([1]), *allocs([4096], first=4)]
    assert packing.least(made).peak == 2 * PAGE
    assert packing.with_hindsight(made) == Resident(3 * PAGE, 3 * PAGE)


def test_blocks_of_more_than_a_page_share_the_pages_that_they_end_in() -> None:
    assert packing.with_hindsight(allocs([4096 + 1024] * 4)) == Resident(5 * PAGE, 5 * PAGE)
    assert (
        packing.with_hindsight(allocs([1040] * 63))
        == packing.least(allocs([1040] * 63))
        == Resident(16 * PAGE, 16 * PAGE)
    )
    assert packing.with_hindsight(allocs([0, 8192, 0])) == Resident(2 * PAGE, 2 * PAGE)


def test_a_block_begins_in_no_page_behind_which_another_lies() -> None:
    """The second block begins in the first one's last page, and the third lies in the second one's: when the second is
    gone, the fourth would not fit between them."""
    made = [*allocs([5120, 5120, 2048]), *allocs([0] * 10, first=5), *frees([2]), *allocs([9216], first=4)]
    assert packing.with_hindsight(made).end == (3 + 3) * PAGE


def test_the_bounds_are_in_order() -> None:
    chance = random.Random(11)
    live: list[int] = []
    made: list[Call] = []
    for block in range(1, 4000):
        if live and chance.random() < 0.4:
            made.append(Call(0, live.pop(chance.randrange(len(live))), 0))
        made.append(Call(0, 0, block, round(2 ** chance.uniform(0, 14))))
        live.append(block)
    today = after(made).allocator.memory.total()
    hindsight, least = packing.with_hindsight(made), packing.least(made)
    assert least.peak <= hindsight.peak <= today.peak and least.end <= hindsight.end <= today.end


# ---- Traces ----------------------------------------------------------------------------------------------------------


def test_calls_of_a_trace() -> None:
    """The name 8 comes again without a free; the realloc of 7 fails; 9 was never seen."""
    writer = Writer()
    writer.event(0, Kind.MALLOC, 8, 10)
    writer.event(0, Kind.ALIGNED, 7, 20 << trace.SHIFT_BITS | 6)
    writer.event(0, Kind.FREE, 9)
    writer.event(1, Kind.CALLOC, 8, 30)
    writer.event(0, Kind.REALLOC, 7)
    writer.event(0, Kind.REALLOCATED, 0, 40)
    writer.event(0, Kind.REALLOC, 7)
    writer.event(0, Kind.REALLOCATED, 6, 50)
    writer.event(0, Kind.REALLOCATED, 5, 60)
    writer.event(0, Kind.FREE, 6)
    recorded = trace.parse(writer.finish(thread_count=2), "t")
    assert calls.of_trace(recorded) == [
        Call(0, 0, 1, 10),
        Call(0, 0, 2, 20, 64),
        Call(1, 1, 0),
        Call(1, 0, 3, 30),
        Call(0, 2, 4, 50),
        Call(0, 0, 5, 60),
        Call(0, 4, 0),
    ]


def test_too_much_alive_is_too_much_at_a_time() -> None:
    writer = Writer()
    for block in range(1, 4):
        writer.event(0, Kind.MALLOC, block, 40 << 30)
        writer.event(0, Kind.FREE, block)
    assert len(calls.of_trace(trace.parse(writer.finish(thread_count=1), "t"))) == 6


def file_of(path: Path, *events: tuple[int, int, int, int]) -> Path:
    writer = Writer()
    for event in events:
        writer.event(*event)
    path.write_bytes(writer.finish(thread_count=1))
    return path


@pytest.mark.forms
def test_the_peak_agrees_with_a_real_replay() -> None:
    (case,) = replays.cases(["git"], size="sanity")
    found = placement.answer(case, [TODAY], check=True)
    assert found.check is not None
    assert found.check.modelled == pytest.approx(found.check.measured, rel=placement.MOST_OFF)
    assert found.check.modelled == pytest.approx(found.today.peak, rel=0.02)  # it has no short peaks
    placement.expect_agreement([found])
    wrong = replace(found, check=placement.Check(2 * found.check.measured, found.check.modelled))
    with pytest.raises(placement.NegativeError, match=r"git: the model is off by more than 5%"):
        placement.expect_agreement([wrong])


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(replays.shipped()))
def test_the_peaks_of_all_traces_agree(name: str) -> None:
    placement.expect_agreement([placement.answer(replays.cases([name], size="sanity")[0], [TODAY], check=True)])


def hakmem(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        cli.main(["placement", *words])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_the_command_answers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = str(
        file_of(tmp_path / "two.trace", (0, Kind.MALLOC, 1, 24), (0, Kind.MALLOC, 2, 5000), (0, Kind.FREE, 2, 0))
    )
    status, out, err = hakmem(capsys, "--policy", "units-16k", file)
    begun = ["placing 3 calls by today", "placing 3 calls by units-16k", "packing blocks as if the future were known"]
    assert (status, err) == (0, "".join(f"hakmem: {line}\n" for line in begun))
    lines = [line.split("  ")[0] for line in out.splitlines()]
    assert lines == [
        f"{file}: 3 calls, 1 thread",
        "policy",
        "today: as hakmem does it",
        "units-16k: units of 16 KiB",
        "packed with hindsight",
        "the least that blocks need",
        "",
    ]
    status, out, err = hakmem(capsys, "--json", "-", file, "--policy", "today")
    (told,) = json.loads(out)
    assert status == 0 and err.startswith("hakmem: placing 3 calls by today\n")
    today = {"peak_bytes": (3 + TABLES) * PAGE, "end_bytes": (3 + TABLES) * PAGE}
    assert told == {
        "trace": file,
        "calls": 3,
        "threads": 1,
        "least": {"peak_bytes": 2 * PAGE, "end_bytes": PAGE},
        "hindsight": {"peak_bytes": 2 * PAGE, "end_bytes": PAGE},
        "policies": [{"name": "today", "does": "as hakmem does it", **today}],
        "check": None,
    }
    kept = tmp_path / "kept.json"
    assert hakmem(capsys, file, "--json", str(kept))[0] == 0
    assert [row["name"] for row in json.loads(kept.read_text())[0]["policies"]] == list(BY_NAME)


def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    good = file_of(tmp_path / "good.trace", (0, Kind.MALLOC, 1, 24))
    files = {
        "garbage": b"\x00garbage" * 1000,
        "cut": good.read_bytes()[:-1],
        "cut.xz": lzma.compress(good.read_bytes())[:-20],
        "damaged": good.read_bytes()[:-100] + b"\x01" + good.read_bytes()[-99:],
        "empty": b"",
        "silent": Writer().finish(thread_count=0),
        "huge": file_of(tmp_path / "huge.trace", (0, Kind.MALLOC, 1, 1 << 50)).read_bytes(),
        "senseless": file_of(tmp_path / "senseless.trace", (0, 0, 1, 1)).read_bytes(),
    }
    for name, data in files.items():
        path = tmp_path / name
        path.write_bytes(data)
        status, out, err = hakmem(capsys, str(path))
        assert (status, out) == (2, ""), name
        assert err.startswith("hakmem: ") and name in err and err.count("\n") == 1, err
    for words in ((), (str(tmp_path / "nowhere"),), (str(tmp_path),), ("--policy", "best", str(good))):
        status, out, err = hakmem(capsys, *words)
        assert (status, out) == (2, "") and err.startswith("hakmem: ") and err.count("\n") == 1, words
    with pytest.raises(TraceError, match="no calls in it"):
        calls.of_trace(trace.parse(files["silent"], "silent"))
