"""Arguments of commands that are words: a command with its own arguments, or names. And what a shell completes them by.

What is known by name is looked up when somebody completes: it takes imports that no command needs to begin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from hakmem.finite import WholeRange


class _Words(click.types.UnprocessedParamType):
    """Taken as they are given. A shell completes them by files."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]


WORDS = _Words()


class _Names(click.types.UnprocessedParamType):
    """Taken as they are given; the command says which are none. A shell completes what follows the last comma."""

    def __init__(self, known: Callable[[], Iterable[str]], or_files: bool = False) -> None:
        self._known, self._or_files = known, or_files

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",")
        found = [CompletionItem(f"{before}{comma}{name}") for name in self._known() if name.startswith(last)]
        return found + ([CompletionItem(incomplete, type="file")] if self._or_files else [])


class _Pid(WholeRange):
    """A process. A shell completes those on hakmem that the caller may ask."""

    def __init__(self) -> None:
        super().__init__(min=1)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from hakmem import ctl

        found = []
        for folder in Path("/proc").iterdir():
            try:
                if (
                    folder.name.isdecimal()
                    and folder.name.startswith(incomplete)
                    and ctl.is_on_hakmem(int(folder.name))
                ):
                    found.append(CompletionItem(folder.name, help=ctl.title(int(folder.name))))
            except OSError:
                continue  # it has ended, or is somebody else's
        return found


def _allocators() -> Iterable[str]:
    from hakmem import allocators, peers

    return [allocators.OWN, allocators.SYSTEM, "all", allocators.PACKAGED, *peers.PEERS]


def _settings() -> Iterable[str]:
    from hakmem import native, settings

    return [f"{name}=" for name in settings.known(native.library())]


def _programs() -> Iterable[str]:
    from hakmem import programs

    return [program.name for program in programs.PROGRAMS]


def _services() -> Iterable[str]:
    from hakmem import services

    return [service.program.name for service in services.SERVICES]


def _cases() -> Iterable[str]:
    from hakmem import suite

    return [*(benchmark.name for benchmark in suite.BENCHMARKS), *suite.GROUPS]


def _traces() -> Iterable[str]:
    from hakmem import replays

    return replays.shipped()


ALLOCATORS = _Names(_allocators)
SETTINGS = _Names(_settings)
PROGRAMS = _Names(_programs)
SERVICES = _Names(_services)
CASES = _Names(_cases)
TRACES = _Names(_traces, or_files=True)
PID = _Pid()
NAMES = "allocators with commas between, NAME=PATH, all, packaged"

# --set, as argument settings.
settings_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    type=SETTINGS,
    help="A setting of hakmem, without HAKMEM_.",
)


def allocators_option(described: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """--with, as argument names."""
    return click.option("--with", "names", multiple=True, metavar="NAMES", type=ALLOCATORS, help=described)
