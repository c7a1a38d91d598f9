"""How few pages the blocks of a trace could lie in, if nobody moves them: a bound below, and a packing that knows when
each block will be freed. The perfect packer is between the two."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence

from hakmem.calls import Call
from hakmem.model.memory import PAGE, Resident
from hakmem.model.region import runs

GRANULE = 16  # malloc's alignment: each belongs to one block
PAGE_GRANULES = PAGE // GRANULE
ALL_FREE = (1 << PAGE_GRANULES) - 1
LOOKS = 8  # at pages on either side


def granules(size: int) -> int:
    return -(-size // GRANULE)


def least(calls: Iterable[Call]) -> Resident:
    """Blocks alive, each rounded up to 16 bytes, in whole pages: no placement needs less, not even one that moves
    blocks."""
    sizes: dict[int, int] = {}
    live = most = 0
    for call in calls:
        live -= sizes.pop(call.old, 0)
        if call.block:
            sizes[call.block] = granules(call.size)
            live += sizes[call.block]
            most = max(most, live)
    return Resident(-(-most // PAGE_GRANULES) * PAGE, -(-live // PAGE_GRANULES) * PAGE)


def with_hindsight(calls: Sequence[Call]) -> Resident:
    """A placement that exists, and that knows when blocks die: each lies in the page whose last block dies soonest
    before or after it. Blocks stay where they are; what grows is made anew."""
    return _Packer(calls).pack()


class _Page:
    """`free` has a bit for each granule; `ends` is when the last of its blocks dies. A page is open while nothing
    lies at the addresses behind it."""

    __slots__ = ("free", "ends", "number", "row", "is_open", "open_row")

    def __init__(self, number: int) -> None:
        self.free = ALL_FREE
        self.ends = 0
        self.number = number
        self.row = -1  # its longest run of free granules has 2^row, and not twice as many; -1: none
        self.is_open = True
        self.open_row = -1  # the same for the free granules at its end, as long as it is open

    def __lt__(self, other: _Page) -> bool:
        return (self.ends, self.number) < (other.ends, other.number)

    def free_at_end(self) -> int:
        return PAGE_GRANULES - (self.free ^ ALL_FREE).bit_length()


Parts = list[tuple[_Page, int]]  # pages that a block shares with others, and its granules there


class _Packer:
    def __init__(self, calls: Sequence[Call]) -> None:
        self.calls = calls
        self.deaths = _deaths(calls)
        # In the order of their ends: pages with a block and room for more, by row, and those that a larger block could
        # begin in, by open_row.
        self.rows: list[list[_Page]] = [[] for _ in range(PAGE_GRANULES.bit_length())]
        self.open_rows: list[list[_Page]] = [[] for _ in range(PAGE_GRANULES.bit_length())]
        self.blocks: dict[int, tuple[int, Parts]] = {}  # how many pages it has for itself, and parts of others
        self.now = self.count = self.pages = self.peak = 0

    def pack(self) -> Resident:
        for call in self.calls:
            if call.block:
                self.blocks[call.block] = self._place(granules(call.size), self.deaths[self.now])
            self.now += 1
            if call.old:
                whole, parts = self.blocks.pop(call.old)
                self.pages -= whole
                for page, mask in parts:
                    self._change(page, page.free | mask, page.ends)
                    self.pages -= page.free == ALL_FREE
        return Resident(self.peak * PAGE, self.pages * PAGE)

    def _place(self, count: int, death: int) -> tuple[int, Parts]:
        page = self._page_with_room(count, death) if 0 < count < PAGE_GRANULES else None
        if page is not None:
            starts = runs(page.free, count)
            return 0, [self._use(page, ((1 << count) - 1) * (starts & -starts), death)]
        parts: Parts = []
        page = self._page_to_begin_in(count % PAGE_GRANULES, death)
        if page is not None:
            at_end = page.free_at_end()
            page.is_open = False
            parts.append(self._use(page, ((1 << at_end) - 1) << (PAGE_GRANULES - at_end), death))
            count -= at_end
        whole, rest = divmod(count, PAGE_GRANULES)
        self._begin_pages(whole)
        if rest:
            parts.append(self._use(self._new_page(), (1 << rest) - 1, death))
        return whole, parts

    def _page_with_room(self, count: int, death: int) -> _Page | None:
        """Where there is surely room, or near the best place in the row in which there may be."""
        row = self.rows[count.bit_length() - 1]
        place = max(0, bisect_left(row, death, key=lambda page: page.ends) - LOOKS)
        fitting = [page for page in row[place : place + 2 * LOOKS] if runs(page.free, count)]
        return _nearest([fitting, *self.rows[(count - 1).bit_length() :]], self.now, death)

    def _page_to_begin_in(self, rest: int, death: int) -> _Page | None:
        """One that saves a page, or any; a block that ends with a page begins with one."""
        if rest == 0:
            return None
        that_save = self.open_rows[(rest - 1).bit_length() :]
        return _nearest(that_save, self.now, death) or _nearest(self.open_rows, self.now, death)

    def _begin_pages(self, count: int) -> None:
        self.pages += count
        self.peak = max(self.peak, self.pages)

    def _new_page(self) -> _Page:
        self._begin_pages(1)
        self.count += 1
        return _Page(self.count)

    def _use(self, page: _Page, mask: int, death: int) -> tuple[_Page, int]:
        self._change(page, page.free & ~mask, max(page.ends, death))
        return page, mask

    def _change(self, page: _Page, free: int, ends: int) -> None:
        if page.row >= 0:
            _remove(self.rows[page.row], page)
        if page.open_row >= 0:
            _remove(self.open_rows[page.open_row], page)
        page.free, page.ends = free, ends
        page.row = _row_of(free) if free != ALL_FREE else -1
        page.open_row = page.free_at_end().bit_length() - 1 if page.is_open and free != ALL_FREE else -1
        if page.row >= 0:
            insort(self.rows[page.row], page)
        if page.open_row >= 0:
            insort(self.open_rows[page.open_row], page)


def _remove(row: list[_Page], page: _Page) -> None:
    del row[bisect_left(row, page)]


def _nearest(rows: Iterable[list[_Page]], now: int, death: int) -> _Page | None:
    """The page whose end is nearest to the death, unless it would live for more than twice as long."""
    best: _Page | None = None
    for row in rows:
        place = bisect_left(row, death, key=lambda page: page.ends)
        for page in row[max(place - 1, 0) : place + 1]:
            is_near = death - page.ends <= (death - now) // 2
            if is_near and (best is None or abs(death - page.ends) < abs(death - best.ends)):
                best = page
    return best


def _row_of(free: int) -> int:
    row = -1
    while free:
        row += 1
        free &= free >> (1 << row)
    return row


def _deaths(calls: Sequence[Call]) -> list[int]:
    """For each call, when the block that it makes is freed or made anew: the number of that call, or of none."""
    deaths = [len(calls)] * len(calls)
    births: dict[int, int] = {}
    for index, call in enumerate(calls):
        if call.old:
            deaths[births[call.old]] = index
        if call.block:
            births[call.block] = index
    return deaths
