"""Policies of placement: what hakmem does today, and what it could do instead."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class Refill(Enum):
    """Where a refill takes blocks from, of the slabs that the heap holds, once those it has claimed are used up."""

    NEWEST_SLAB = "the slab that was held last, its words in turn"
    FULLEST_SLAB = "the slab with the fewest free blocks, its words in turn"
    FULLEST_WORD = "the 64 blocks of which the fewest are free"
    OLDEST_SLAB = "the slab that was made first, its words in turn"


class Flush(Enum):
    """Which blocks of a full bin go back to their slabs."""

    OLDEST = "those that came first"
    EMPTIEST = "those that lie among the most free ones of their 64"


@dataclass(frozen=True)
class Policy:
    name: str
    does: str
    unit_bytes: int = 64 << 10
    class_steps: int = 8  # block sizes from one power of two to the next
    group_classes: int = 4  # above 1 KiB, so many sizes are served by the widest of them at first; 1: none are
    slabs_to_open: int = 4  # of the widest, of 64 KiB at least, before each of them is served by its own class
    bin_bytes: int = 48 << 10
    bin_budget_bytes: int = 1 << 20
    long_refill: int = 5  # refills in a row, of which the last one fills the bin
    long_flush: int = 5  # flushes in a row, of which the last one empties it
    refill: Refill = Refill.NEWEST_SLAB
    flush: Flush = Flush.OLDEST
    apart_after: float = 1  # blocks that live for longer than this share of all calls have slabs of their own


TODAY = Policy("today", "as hakmem does it")

POLICIES = (
    TODAY,
    replace(TODAY, name="fullest-word", does="refill from the fullest 64 blocks", refill=Refill.FULLEST_WORD),
    replace(TODAY, name="fullest-slab", does="refill from the fullest slab", refill=Refill.FULLEST_SLAB),
    replace(TODAY, name="oldest-slab", does="refill from the oldest slab", refill=Refill.OLDEST_SLAB),
    replace(TODAY, name="flush-emptiest", does="a flush keeps what lies in full words", flush=Flush.EMPTIEST),
    replace(TODAY, name="units-32k", does="units of 32 KiB", unit_bytes=32 << 10),
    replace(TODAY, name="units-16k", does="units of 16 KiB", unit_bytes=16 << 10),
    replace(TODAY, name="small-bins", does="bins of a quarter", bin_bytes=12 << 10, bin_budget_bytes=256 << 10),
    replace(TODAY, name="hasty-bins", does="bins empty at the second flush in a row", long_flush=2),
    replace(TODAY, name="fine-classes", does="half the spacing of sizes", class_steps=16, group_classes=8),
    replace(TODAY, name="no-groups", does="sizes above 1 KiB apart at once", group_classes=1),
    replace(TODAY, name="late-groups", does="sizes above 1 KiB together for longer", slabs_to_open=16),
    replace(TODAY, name="lifetimes", does="what lives long apart, if that were known", apart_after=1 / 16),
)
