"""hakmem bench: the benchmark suite against peers."""

from __future__ import annotations

import click

from hakmem.commands import suites
from hakmem.errors import LabError


@click.command()
@suites.options("short runs: they prove that everything runs, nothing else", "print the cases and their commands")
@click.option(
    "--contest",
    "is_contest",
    is_flag=True,
    help="all that is installed; keeps the record, and makes docs/contest.md from it",
)
@click.argument("cases", nargs=-1, metavar="[NAME]...")
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

    With --contest, every allocator that is installed takes part, and no ceiling. The record is kept in evidence/, and
    the page of the contest is written from it.

    Exit status: 0 when every case ran under every allocator, 1 when one failed, 130 when interrupted.
    """
    from hakmem import allocators, catalogue, claims, contest, ledger, measure, native, replays, suite, words

    if only_list:
        print(words.table(["case", "group", "command"], catalogue.listing()))
        return 0
    if is_contest and native.checkout() is None:
        raise LabError("--contest writes a page of a checkout of hakmem, and this is an installed package")
    chosen, missing = catalogue.choose(cases, size="sanity" if sanity else "full")
    for name in missing:
        click.echo(f"hakmem: left out: {name}", err=True)
    players = allocators.resolve(names or ("all" if is_contest else "hakmem,glibc",))
    variants = measure.variants(players) + ([] if is_contest else [catalogue.ceiling()])
    if is_contest:
        files["keep"] = files["keep"] or contest.KIND
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
        notes=[*(contest.versions(players) if is_contest else []), *(f"left out: {name}" for name in missing)],
    )
    for name in claims.write(ledger.folder().parent) if is_contest else []:
        click.echo(f"hakmem: wrote {name}", err=True)
    return status
