"""What huge pages and fault-ahead do for a command: the same command under every combination of them that there is.

Any allocator can be denied transparent huge pages (prctl, for the command and all it starts). Asking for them, and
having memory faulted in ahead, are settings of the allocator: rows exist only where it has them.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hakmem import settings
from hakmem.allocators import OWN, SYSTEM, Allocator
from hakmem.errors import LabError
from hakmem.measure import CommandCase, Measurement, Sample, Step, Variant, measure

PR_SET_THP_DISABLE = 41
DENIED = "no huge pages"
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")

ASK_FOR_HUGE_PAGES: dict[str, dict[str, str]] = {
    OWN: {"HAKMEM_THP": "on"},
    SYSTEM: {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},
}
PREFAULT: dict[str, dict[str, str]] = {OWN: {"HAKMEM_PREFAULT": "1"}}


@dataclass(frozen=True)
class Matrix:
    variants: list[Variant]
    denied: frozenset[str]  # names of variants without huge pages
    notes: list[str]


def matrix(allocator: Allocator) -> Matrix:
    """The variants there are for this allocator on this machine, and why others are missing."""
    notes = []
    system = _system_choice()
    ask = _available(allocator, ASK_FOR_HUGE_PAGES)
    prefault = _available(allocator, PREFAULT)
    pages: dict[str, dict[str, str]] = {DENIED: {}}
    if system == "never":
        notes.append("this machine gives no transparent huge pages: there are only rows without")
    else:
        pages[f"huge pages as the system has it ({system})"] = {}
        if ask:
            pages["huge pages asked for"] = ask
        else:
            notes.append(f"{allocator.name} has no setting that asks for huge pages")
    faults: dict[str, dict[str, str]] = {"": {}}
    if prefault:
        faults[", prefault"] = prefault
    else:
        notes.append(f"{allocator.name} has no setting for prefault")
    variants = [
        Variant(page + fault, allocator, {**of_page, **of_fault})
        for page, of_page in pages.items()
        for fault, of_fault in faults.items()
    ]
    denied = frozenset(variant.name for variant in variants if variant.name.startswith(DENIED))
    return Matrix(variants, denied, notes)


def _system_choice() -> str:
    try:
        found = re.search(r"\[(\w+)\]", HUGE_PAGES.read_text())
    except OSError:
        found = None
    return found[1] if found else "never"


def _available(allocator: Allocator, by_allocator: Mapping[str, dict[str, str]]) -> dict[str, str]:
    """The settings of this allocator that its library takes; empty: none."""
    wanted = by_allocator.get(allocator.name, {})
    if allocator.name != OWN or allocator.library is None:
        return wanted
    try:
        return settings.parse(
            [f"{name.removeprefix(settings.PREFIX)}={value}" for name, value in wanted.items()], allocator.library
        )
    except LabError:
        return {}


@contextmanager
def huge_pages_denied() -> Iterator[None]:
    """What is started meanwhile, and all that it starts, gets no transparent huge pages."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) != 0:
        raise LabError("this kernel can't switch transparent huge pages off for one process (PR_SET_THP_DISABLE)")
    try:
        yield
    finally:
        prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0)


@dataclass(frozen=True)
class PagesCase(CommandCase):
    denied: frozenset[str] = frozenset()

    def run(self, variant: Variant) -> Sample:
        if variant.name not in self.denied:
            return super().run(variant)
        with huge_pages_denied():
            return super().run(variant)


def run(command: Sequence[str], chosen: Matrix, rounds: int, on_step: Callable[[Step], None]) -> Measurement:
    case = PagesCase(tuple(command), denied=chosen.denied)
    return measure([case], chosen.variants, rounds, on_step=on_step)
