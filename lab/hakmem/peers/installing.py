"""Installs peers, one after another: fetch, build, prove, keep. One that fails doesn't stop the others."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from hakmem.errors import LabError
from hakmem.peers import store, takeover
from hakmem.peers.catalogue import PEERS, Peer
from hakmem.peers.sources import digest
from hakmem.peers.store import Stamp, State
from hakmem.peers.workshop import Say, Workshop, compiler, require


@dataclass(frozen=True)
class Outcome:
    peer: Peer
    seconds: float = 0.0
    was_there: bool = False
    error: str | None = None


def told(peer: Peer) -> Say:
    """A line per step."""

    def say(what: str, done: int = 0, total: int = 0) -> None:
        if not total:
            print(f"hakmem: {peer.name}: {what}", file=sys.stderr, flush=True)

    return say


def resolve(names: Iterable[str]) -> list[Peer]:
    """All peers when no name is given."""
    wanted = list(names)
    for name in wanted:
        if name not in PEERS:
            raise LabError(f"no peer {name!r}; there are {', '.join(PEERS)}")
    return [peer for peer in PEERS.values() if not wanted or peer.name in wanted]


def install(peers: Iterable[Peer], jobs: int, say_of: Callable[[Peer], Say]) -> Iterator[Outcome]:
    """Yields what became of each."""
    with store.locked():
        for peer in peers:
            if store.state(peer) is State.INSTALLED:
                yield Outcome(peer, was_there=True)
                continue
            start = time.monotonic()
            error = None
            try:
                _install(peer, jobs, say_of(peer))
            except (LabError, OSError) as problem:
                error = str(problem)
            yield Outcome(peer, time.monotonic() - start, error=error)


def _install(peer: Peer, jobs: int, say: Say) -> None:
    folder, log = store.building(peer.name), store.log(peer.name)
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
    folder.mkdir(parents=True)
    log.parent.mkdir(exist_ok=True)
    log.write_text(f"{peer.name} {peer.version}\n")
    try:
        _make(peer, Workshop(folder, log, jobs, say))
    except LabError as problem:
        with log.open("a") as file:
            print(problem, file=file)
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _make(peer: Peer, workshop: Workshop) -> None:
    tools = peer.recipe.tools
    require(tools)
    workshop.say("fetching")
    delivery = peer.source.deliver(store.root() / "sources", workshop)
    version = delivery.version or peer.version
    workshop.say("building")
    start = time.monotonic()
    built = peer.recipe.build(delivery.folder, workshop)
    seconds = time.monotonic() - start
    workshop.say("proving")
    takeover.prove(built, peer.marker, version, peer.settings)
    said = workshop.run(*compiler("c++" if "c++" in tools else "c"), "--version") if tools else None
    stamp = Stamp(
        name=peer.name,
        version=version,
        source=delivery.source,
        source_sha256=delivery.sha256,
        library_sha256=digest(built) or "",
        flags=peer.recipe.words,
        compiler=said.splitlines()[0] if said else None,
        build_s=round(seconds, 1),
    )
    store.keep(workshop.folder, built, stamp)
