"""Slabs: units cut into blocks of one class, with a bit for each that is free (src/slab/slab.c)."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hakmem.model.heap import Heap

WORD_BITS = 64
INLINE_WORDS = 6  # bits of larger slabs lie in a table of their own


class State(Enum):
    HELD = "in its heap's list"
    POOLED = "in the pool's set"
    FULL = "nobody looks at it until a block is freed"


class Slab:
    """`claimed` are free blocks of one word that the holder has taken ahead; words from `tail_word` on it has claimed
    all along, and no block of them was ever handed out."""

    __slots__ = (
        "start", "unit", "units", "size_class", "block_bytes", "block_count", "masks", "bits", "claimed",
        "claimed_word", "tail_word", "scan_word", "purged_pages", "state", "heap", "number",
    )  # fmt: skip

    def __init__(self, start: int, unit: int, units: int, size_class: int, block_bytes: int, count: int) -> None:
        self.start, self.unit, self.units = start, unit, units
        self.size_class, self.block_bytes, self.block_count = size_class, block_bytes, count
        words = -(-count // WORD_BITS)
        self.masks = [(1 << WORD_BITS) - 1] * (words - 1) + [(1 << (count - (words - 1) * WORD_BITS)) - 1]
        self.bits = [0] * words
        self.claimed, self.claimed_word, self.tail_word, self.scan_word = self.masks[0], 0, 1, 0
        self.purged_pages = 0  # a bit for each page that went back to the kernel since the last claim
        self.state = State.HELD
        self.heap: Heap | None = None  # the holder, or the last one
        self.number = 0  # in the order in which slabs were made

    def claimed_in(self, word: int) -> int:
        if word == self.claimed_word:
            return self.claimed
        return 0 if word < self.tail_word else self.masks[word]

    def claim_word(self) -> bool:
        """Claims the next word with free blocks; what was touched before what was not."""
        if self._claim_from(self.scan_word, self.tail_word):
            return True
        if self.tail_word < len(self.bits):
            self.claimed = self.masks[self.tail_word]
            self.claimed_word = self.scan_word = self.tail_word
            self.tail_word += 1
            return True
        return self._claim_from(0, self.scan_word)

    def _claim_from(self, first: int, end: int) -> bool:
        for word in range(first, end):
            if self.bits[word]:
                self.claim(word)
                return True
        return False

    def claim(self, word: int) -> None:
        self.claimed, self.bits[word] = self.bits[word], 0
        self.claimed_word = self.scan_word = word

    def take(self, want: int) -> list[int]:
        """Addresses of the lowest claimed blocks."""
        claimed = self.claimed
        got: list[int] = []
        base = self.start + self.claimed_word * WORD_BITS * self.block_bytes
        while claimed and len(got) < want:
            lowest = claimed & -claimed
            got.append(base + (lowest.bit_length() - 1) * self.block_bytes)
            claimed ^= lowest
        self.claimed = claimed
        return got

    def unclaim_word(self) -> None:
        if self.claimed:
            self.bits[self.claimed_word] |= self.claimed
            self.claimed = 0
            self.scan_word = min(self.scan_word, self.claimed_word)

    def unclaim(self) -> None:
        self.bits[self.claimed_word] |= self.claimed
        self.claimed = 0
        for word in range(self.tail_word, len(self.bits)):
            self.bits[word] |= self.masks[word]
        self.tail_word = len(self.bits)

    def is_empty(self) -> bool:
        return all(self.bits[word] | self.claimed_in(word) == self.masks[word] for word in range(self.tail_word))

    def all_set(self) -> bool:
        return self.bits == self.masks

    def free_count(self) -> int:
        """Free blocks, claimed ones among them."""
        free = sum(word.bit_count() for word in self.bits) + self.claimed.bit_count()
        return free + max(0, self.block_count - self.tail_word * WORD_BITS)

    def fullest_word(self) -> int | None:
        """Of the words before the tail with free blocks, the one with the fewest."""
        found = min(((bits.bit_count(), word) for word, bits in enumerate(self.bits) if bits), default=None)
        return found[1] if found else None

    def free_bits(self) -> int:
        """One number of all bits."""
        return sum(bits << word * WORD_BITS for word, bits in enumerate(self.bits))
