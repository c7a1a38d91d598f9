"""Which pages are resident, and how many were at the most."""

from __future__ import annotations

from dataclasses import dataclass

PAGE = 4096


@dataclass(frozen=True)
class Resident:
    """In bytes: at the most, and after the last call."""

    peak: int
    end: int


class Memory:
    """Addresses are numbers. A page is resident from its first touch until it is purged."""

    def __init__(self) -> None:
        self.resident: set[int] = set()  # numbers of pages
        self.peak = 0

    def total(self) -> Resident:
        return Resident(self.peak * PAGE, len(self.resident) * PAGE)

    def touch(self, start: int, size: int) -> None:
        if size == 0:
            return
        first, last = start >> 12, (start + size - 1) >> 12
        resident = self.resident
        if first not in resident or last not in resident or last > first + 1:
            resident.update(range(first, last + 1))
            if len(resident) > self.peak:
                self.peak = len(resident)

    def purge(self, start: int, size: int) -> None:
        self.resident.difference_update(range(start >> 12, (start + size) >> 12))

    def move(self, start: int, size: int, target: int) -> None:
        """Page tables are changed: what was resident is so elsewhere."""
        pages = {page for page in range(start >> 12, (start + size) >> 12) if page in self.resident}
        self.resident -= pages
        self.resident |= {page + ((target - start) >> 12) for page in pages}
