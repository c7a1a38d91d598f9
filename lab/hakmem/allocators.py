"""Names of allocators, and the libraries behind them.

`hakmem` is this project's library, `glibc` the C library's own malloc (whatever the C library is), any other name a
peer that `hakmem peers install` built, and NAME=PATH a library of the user's. `packaged` are peers as the distribution
built them.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hakmem import native
from hakmem.errors import LabError

SYSTEM = "glibc"
OWN = "hakmem"
PACKAGED = "packaged"


@dataclass(frozen=True)
class Allocator:
    name: str
    library: Path | None  # to preload; None: the C library's own malloc
    settings: Mapping[str, str] = field(default_factory=dict, hash=False)  # what it needs to be at its best

    def sha256(self) -> str | None:
        return hashlib.sha256(self.library.read_bytes()).hexdigest() if self.library else None


def hakmem() -> Allocator:
    """LabError where it ignores a setting of the caller's."""
    from hakmem import settings

    library = native.library()
    _tell_elsewhere(library)
    settings.expect_callers(library)
    return Allocator(OWN, library)


@functools.cache
def _tell_elsewhere(library: Path) -> None:
    """Who has built another checkout, and is in it, may mean that one."""
    try:
        here = native.checkout_around(Path.cwd())
    except OSError:
        return  # the working directory is gone
    if here not in (None, native.checkout()):
        print(f"hakmem: what runs is {library}, from where this command was installed, not {here}", file=sys.stderr)


def glibc() -> Allocator:
    return Allocator(SYSTEM, None)


def installed() -> list[Allocator]:
    """All that can be run on this machine now: hakmem, the C library's, and the peers that are installed."""
    from hakmem import peers

    return [hakmem(), glibc(), *(_peer(name, path) for name, path in peers.installed().items())]


def resolve(words: Iterable[str]) -> list[Allocator]:
    """Each word a name, NAME=PATH, `all`, `packaged`, or several of these with commas between, in the order given. The
    same allocator may stand there twice: compared with itself, it shows the noise."""
    found: list[Allocator] = []
    for word in (part.strip() for some in words for part in some.split(",")):
        found += installed() if word == "all" else _packaged() if word == PACKAGED else [_resolve_one(word)]
    return found


def _packaged() -> list[Allocator]:
    """Those that the distribution has built: fetched where they aren't yet. LabError when none can be had."""
    from hakmem.peers import catalogue, installing

    outcomes = list(installing.install(installing.resolve(catalogue.PACKAGED), 1, installing.told))
    for outcome in outcomes:
        if outcome.error is not None:
            print(f"hakmem: left out: {outcome.peer.name}: {outcome.error}", file=sys.stderr)
    found = [_resolve_one(outcome.peer.name) for outcome in outcomes if outcome.error is None]
    if not found:
        raise LabError(f"{PACKAGED}: the distribution has none of {', '.join(catalogue.PACKAGED)} for this machine")
    return found


def _peer(name: str, library: Path) -> Allocator:
    from hakmem import peers

    return Allocator(name, library, peers.PEERS[name].settings)


def expect_malloc(library: Path, word: str) -> None:
    """LabError for a file that has no malloc for programs, or is no library."""
    from hakmem import elf

    try:
        exports = elf.read(library).exports
    except LabError as error:
        raise LabError(f"{word}: expected NAME=PATH of a shared library: {error}") from None
    if "malloc" not in exports and not native.is_library(library):
        raise LabError(f"{word}: expected NAME=PATH of a shared library with a malloc; {library} exports none")


def _resolve_one(word: str) -> Allocator:
    from hakmem import peers

    name, equals, path = word.partition("=")
    if equals:
        library = Path(path)
        if not name or not library.is_file():
            raise LabError(f"{word}: expected NAME=PATH of a shared library, and there is no file {path!r}")
        if name == SYSTEM:
            raise LabError(f"{word}: {SYSTEM} is the C library's own malloc; expected another name")
        expect_malloc(library, word)
        return Allocator(name, library.resolve())
    if name == OWN:
        return hakmem()
    if name == SYSTEM:
        return glibc()
    libraries = peers.installed()
    if name in libraries:
        return _peer(name, libraries[name])
    if name in peers.PEERS:
        raise LabError(f"the peer {name} is not installed: hakmem peers install {name}")
    known = ", ".join([OWN, SYSTEM, *peers.PEERS])
    raise LabError(f"no allocator {name!r}; known are {known}, and NAME=PATH")
