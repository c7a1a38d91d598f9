"""hakmem health: does everything work, under every profile?"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import click

from hakmem import files, terminal
from hakmem.health import Check


@click.command()
@click.option("--profile", "names", multiple=True, metavar="NAME", help="this one only, as often as wanted")
@click.option("--quick", is_flag=True, help="all of it under the first profile only, and bars that are met today")
@files.json_option("every check")
def command(names: tuple[str, ...], quick: bool, json_file: Path | None) -> int:
    """Runs every benchmark once at sanity size and at 1 to 64 threads, and programs that print little, under every
    profile, and compares with the C library: exit status, checksum, every byte printed; and what fragmentation leaves.

    --quick: under the first profile all of it, under the others programs that print little and those with threads.
    What passes and is short of its goal is named.

    Exit status: 0 when all checks passed, 1 when one failed.
    """
    from hakmem import allocators, health, native, words
    from hakmem.errors import LabError

    native.expect_programs()
    own = allocators.hakmem()
    assert own.library is not None
    known = health.profiles(own.library)
    for name in names:
        if name not in {profile.name for profile in known}:
            raise LabError(f"no profile {name!r}; there are {', '.join(profile.name for profile in known)}")
    wanted = [profile for profile in known if not names or profile.name in names]
    is_told, is_drawn = not files.takes_output(json_file), terminal.can_draw(sys.stderr)
    checks: list[Check] = []
    for check in health.Examination(own, quick=quick).run(wanted):
        checks.append(check)
        if not check.passed and is_told:
            print(f"FAILED: {check.profile}: {check.name}: {check.wrong}", flush=True)
        elif check.short and is_told:
            print(f"SHORT OF ITS GOAL: {check.profile}: {check.name}: {check.short}", flush=True)
        elif is_drawn:
            print(f"\r\033[K{check.profile}: {check.name}", end="", file=sys.stderr, flush=True)
    if is_drawn:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    files.write_json(json_file, [dataclasses.asdict(check) for check in checks])
    if is_told:
        groups = list(dict.fromkeys(check.group for check in checks))
        lines = [[profile.name, *(_count(checks, profile.name, group) for group in groups)] for profile in wanted]
        print(words.table(["profile", *groups], lines))
        failed = sum(not check.passed for check in checks)
        print(f"\n{len(checks) - failed} passed, {failed} failed")
    return 0 if all(check.passed for check in checks) else 1


def _count(checks: list[Check], profile: str, group: str) -> str:
    mine = [check for check in checks if (check.profile, check.group) == (profile, group)]
    failed = sum(not check.passed for check in mine)
    if not mine:
        return "-"
    return f"{failed} of {len(mine)} FAILED" if failed else f"{len(mine)} ok"
