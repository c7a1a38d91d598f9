"""hakmem peers: lists the allocators to compare with, and installs them."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from hakmem import files, terminal
from hakmem.finite import WholeRange
from hakmem.peers import installing, store
from hakmem.peers.catalogue import PEERS, Peer
from hakmem.peers.workshop import Say


@click.group(invoke_without_command=True)
@click.pass_context
def command(context: click.Context) -> None:
    """The allocators to compare with: fetches, builds and proves them (install), or shows what is there (list)."""
    if context.invoked_subcommand is None:
        context.invoke(list_peers)


@command.command("list")
@files.json_option("the list")
def list_peers(json_file: Path | None) -> None:
    """Shows every peer: name, version, source, state and path."""
    names = ("name", "version", "source", "state", "path")
    rows = [("glibc", platform.libc_ver()[1] or "unknown", "the system's C library", "built in", "")]
    for peer in PEERS.values():
        stamp, state = store.stamp(peer.name), store.state(peer)
        version, source = (stamp.version, stamp.source) if stamp else (peer.version, peer.source.label)
        path = str(store.library(peer.name)) if state is store.State.INSTALLED else ""
        rows.append((peer.name, version, source, state.value, path))
    files.write_json(json_file, [dict(zip(names, row, strict=True)) for row in rows])
    if files.takes_output(json_file):
        return
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        words = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        print("  ".join([*words, row[4]]).rstrip())


@command.command("install")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "-j",
    "--jobs",
    type=WholeRange(min=1),
    default=os.cpu_count() or 1,
    help="Compilers at a time; as many as there are cores unless told.",
)
def install_peers(names: tuple[str, ...], jobs: int) -> int:
    """Installs the peers named, or all of them. What is there and current is left alone."""
    peers = installing.resolve(names)
    failed = 0
    with _progress() as say_of:
        for outcome in installing.install(peers, jobs, say_of):
            failed += outcome.error is not None
            print(_summary(outcome), flush=True)
    return 1 if failed else 0


def _summary(outcome: installing.Outcome) -> str:
    name = outcome.peer.name
    if outcome.error is not None:
        return f"{name}: FAILED after {outcome.seconds:.0f} s: {outcome.error} (log: {store.log(name)})"
    stamp = store.stamp(name)
    version = stamp.version if stamp else outcome.peer.version
    how = "was installed already" if outcome.was_there else f"installed and proved in {outcome.seconds:.0f} s"
    return f"{name} {version}: {how}: {store.library(name)}"


@contextmanager
def _progress() -> Iterator[Callable[[Peer], Say]]:
    """A line that moves on a terminal; elsewhere a line per step."""
    if terminal.can_draw(sys.stderr):
        from rich.console import Console

        with Console(stderr=True).status("") as status:

            def moving(peer: Peer) -> Say:
                def say(what: str, done: int = 0, total: int = 0) -> None:
                    status.update(f"{peer.name}: {what}" + (f", {done} of {total} files" if total else ""))

                return say

            yield moving
    else:
        yield installing.told
