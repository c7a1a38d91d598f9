"""hakmem bench: the benchmark suite against peers."""

from __future__ import annotations

import click

from hakmem import output


@click.command()
@click.option("-n", "--rounds", type=click.IntRange(min=1), default=6, show_default=True, help="counted runs of each")
@click.option("--warmup", type=click.IntRange(min=0), default=0, show_default=True, help="runs of each before them")
@click.option("--with", "names", multiple=True, metavar="NAMES", help="allocators; `all`: every one that is installed")
@click.option("--baseline", metavar="NAME", help="what ratios are to  [default: hakmem]")
@click.option("--sanity", is_flag=True, help="short runs: they prove that everything runs, nothing else")
@click.option("--list", "only_list", is_flag=True, help="print the cases and their commands")
@output.options
@click.argument("cases", nargs=-1, metavar="[NAME]...")
def command(
    rounds: int,
    warmup: int,
    names: tuple[str, ...],
    baseline: str | None,
    sanity: bool,
    only_list: bool,
    cases: tuple[str, ...],
    **files: str | None,
) -> int:
    """Runs the suite's cases (all, or those of the names and groups given) under hakmem, glibc and whatever --with
    adds.

    Prints time and peak memory of every case with ratios and their intervals, and the benchmarks' own figures. Beside
    the allocators runs the ceiling, BenchFast: an allocator that does almost nothing, which shows how much of a
    benchmark is the benchmark itself. A case that fails under one allocator is named, and the others go on.

    Exit status: 0 when every case ran under every allocator, 1 when one failed, 130 when interrupted.
    """
    from hakmem import allocators, catalogue, comparison, ledger, machine, measure, progress, suite, words

    if only_list:
        print(words.table(["case", "group", "command"], catalogue.listing()))
        return 0
    chosen, missing = catalogue.choose(cases, size="sanity" if sanity else "full")
    for name in missing:
        click.echo(f"hakmem: left out: {name}", err=True)
    variants = [*measure.variants(allocators.resolve(names or ("hakmem,glibc",))), catalogue.ceiling()]
    start = machine.facts()
    with progress.shown() as on_step:
        done = measure.measure(chosen, variants, rounds, warmup=warmup, on_step=on_step)
    done.notes += [f"left out: {name}" for name in missing]
    record = ledger.from_measurement(done, "bench", warmup=warmup, start=start)
    base = baseline or ("hakmem" if "hakmem" in record.variants else None)
    figures = suite.compared_figures()
    output.finish(
        record,
        lambda kept: comparison.suite_report(record, "suite", baseline=base, figures=figures, kept=kept),
        **files,  # type: ignore[arg-type]
    )
    return 130 if done.interrupted else 1 if done.failures else 0
