"""hakmem bench: the benchmark suite against peers."""

from __future__ import annotations

import click

from hakmem.commands import suites


@click.command()
@suites.options("short runs: they prove that everything runs, nothing else", "print the cases and their commands")
@click.argument("cases", nargs=-1, metavar="[NAME]...")
def command(
    rounds: int,
    warmup: int,
    names: tuple[str, ...],
    baseline: str | None,
    on: str | None,
    sanity: bool,
    only_list: bool,
    cases: tuple[str, ...],
    **files: str | None,
) -> int:
    """Runs the suite's cases (all, or those of the names and groups given) under hakmem and glibc, or under the
    allocators of --with.

    Prints time and peak memory of every case with ratios and their intervals, and the benchmarks' own figures. Beside
    the allocators runs the ceiling, BenchFast: an allocator that does almost nothing, which shows how much of a
    benchmark is the benchmark itself. A case that fails under one allocator is named, and the others go on.

    Exit status: 0 when every case ran under every allocator, 1 when one failed, 130 when interrupted.
    """
    from hakmem import allocators, catalogue, measure, replays, suite, words

    if only_list:
        print(words.table(["case", "group", "command"], catalogue.listing()))
        return 0
    chosen, missing = catalogue.choose(cases, size="sanity" if sanity else "full")
    for name in missing:
        click.echo(f"hakmem: left out: {name}", err=True)
    return suites.compare(
        "bench",
        chosen,
        [*measure.variants(allocators.resolve(names or ("hakmem,glibc",))), catalogue.ceiling()],
        [*suite.compared_figures(), *replays.FIGURES],
        rounds=rounds,
        warmup=warmup,
        baseline=baseline,
        on=on,
        files=files,
        notes=[f"left out: {name}" for name in missing],
    )
