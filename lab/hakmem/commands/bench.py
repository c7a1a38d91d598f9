"""hakmem bench: the benchmark suite against peers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hakmem import arguments
from hakmem.commands import suites
from hakmem.errors import LabError

if TYPE_CHECKING:
    from hakmem.allocators import Allocator
    from hakmem.measure import Case


@click.command()
@suites.options("short runs: they prove that everything runs, nothing else", "print the cases and their commands")
@click.option(
    "--contest",
    "is_contest",
    is_flag=True,
    help="all that is installed; keeps the record, and makes docs/contest.md from it",
)
@click.argument("cases", nargs=-1, metavar="[NAME]...", type=arguments.CASES)
def command(
    rounds: int,
    warmup: int,
    names: tuple[str, ...],
    baseline: str | None,
    on: str | None,
    sanity: bool,
    only_list: bool,
    is_contest: bool,
    cases: tuple[str, ...],
    **files: str | None,
) -> int:
    """Runs the suite's cases (all, or those of the names and groups given) under hakmem and glibc, or under the
    allocators of --with.

    Prints time and peak memory of every case with ratios and their intervals, and the benchmarks' own figures. Beside
    the allocators runs the ceiling, BenchFast: an allocator that does almost nothing, which shows how much of a
    benchmark is the benchmark itself. A case that fails under one allocator is named, and the others go on.

    With --contest, every allocator that is installed takes part, and no ceiling; the tree must be as committed. The
    record is kept in evidence/, and the page of the contest is written from it.

    Exit status: 0 when every case ran under every allocator, 1 when one failed, 130 when interrupted.
    """
    from hakmem import allocators, catalogue, contest, measure, native, replays, suite, words

    if only_list:
        print(words.table(["case", "group", "command"], catalogue.listing()))
        return 0
    if is_contest:
        _expect_all(names, baseline, sanity, rounds)
    native.expect_programs()
    chosen, missing = catalogue.choose(cases, size="sanity" if sanity else "full")
    for name in missing:
        click.echo(f"hakmem: left out: {name}", err=True)
    players = allocators.resolve(names or ("all" if is_contest else "hakmem,glibc",))
    variants = measure.variants(players) + ([] if is_contest else [catalogue.ceiling()])
    if is_contest:
        files["keep"] = files["keep"] or contest.KIND
    before = _contests() if is_contest else set()
    status = suites.compare(
        contest.KIND if is_contest else "bench",
        chosen,
        variants,
        [*suite.compared_figures(), *replays.FIGURES],
        rounds=rounds,
        warmup=warmup,
        baseline=baseline,
        on=on,
        files=files,
        notes=[*(_facts(players, chosen) if is_contest else []), *(f"left out: {name}" for name in missing)],
    )
    if is_contest:
        _write_page(before)
    return status


def _expect_all(names: tuple[str, ...], baseline: str | None, sanity: bool, rounds: int) -> None:
    """That a contest is of all, and can be cited: told before the first run."""
    from hakmem import contest, ledger, native, tree

    if names or baseline or sanity:
        raise LabError("--contest is of all allocators, at full size: it takes no --with, --baseline or --sanity")
    contest.expect_rounds(rounds)
    if native.checkout() is None:
        raise LabError("--contest writes a page of a checkout of hakmem, and this is an installed package")
    if not tree.checked_out()[1]:
        raise LabError("--contest measures what was committed, and this tree has changes, or git doesn't tell")
    if not tree.is_built():
        raise LabError(f"--contest measures what was committed: {ledger.UNBUILT}")


def _facts(players: list[Allocator], cases: list[Case]) -> list[str]:
    from hakmem import contest

    return [*contest.part((one.name for one in players), (one.name for one in cases)), *contest.versions(players)]


def _contests() -> set[str]:
    from hakmem import contest, ledger

    return {one.id for one in ledger.load_all(ledger.folder())[0].values() if one.kind == contest.KIND}


def _write_page(before: set[str]) -> None:
    """`before` are the contests that were there before this one."""
    from hakmem import claims, contest, ledger

    folder = ledger.folder()
    for name in claims.write(folder.parent):
        click.echo(f"hakmem: wrote {name}", err=True)
    records = claims.Ledger(folder)
    try:
        made = [records.find(one) for one in _contests() - before]
    except LabError as error:
        click.echo(f"hakmem: docs/contest.md has no word of it: {error}", err=True)
        return
    newest = records.newest(contest.KIND)
    if made and newest is not None and newest not in made:
        click.echo(f"hakmem: docs/contest.md has no word of it: the record {newest.id} has a later date", err=True)
