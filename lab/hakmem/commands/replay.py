"""hakmem replay: traces of real programs under several allocators."""

from __future__ import annotations

import click

from hakmem import output
from hakmem.report.model import Report


@click.command()
@click.option("-n", "--rounds", type=click.IntRange(min=1), default=6, show_default=True, help="counted runs of each")
@click.option("--warmup", type=click.IntRange(min=0), default=0, show_default=True, help="runs of each before them")
@click.option("--with", "names", multiple=True, metavar="NAMES", help="allocators; `all`: every one that is installed")
@click.option("--baseline", metavar="NAME", help="what ratios are to  [default: hakmem]")
@click.option("--sanity", is_flag=True, help="each trace once: it proves that it can be replayed, nothing else")
@click.option("--list", "only_list", is_flag=True, help="print the traces that come with hakmem")
@output.options
@click.argument("traces", nargs=-1, metavar="TRACE...")
def command(
    rounds: int,
    warmup: int,
    names: tuple[str, ...],
    baseline: str | None,
    sanity: bool,
    only_list: bool,
    traces: tuple[str, ...],
    **files: str | None,
) -> int:
    """Replays what programs asked of their allocators, under hakmem, glibc and whatever --with adds, interleaved.

    TRACE is the name of one that comes with hakmem, or a file that `hakmem record` wrote. It is gone through as often
    as it takes for 10 million calls, in the recorded threads and the recorded order. heap_per_live is the ratio of the
    memory that the blocks took to the bytes that were asked for.

    Exit status: 0 when every trace was replayed under every allocator, 1 when one failed, 130 when interrupted.
    """
    from hakmem import allocators, comparison, ledger, machine, measure, progress, replays, words

    if only_list:
        print(
            words.table(["trace", "calls", "threads", "alive at the most", "package", "what it did"], replays.listing())
        )
        return 0
    if not traces:
        raise click.UsageError("no trace: expected a file, or a name that `hakmem replay --list` prints")
    chosen = replays.cases(traces, size="sanity" if sanity else "full")
    variants = measure.variants(allocators.resolve(names or ("hakmem,glibc",)))
    start = machine.facts()
    with progress.shown() as on_step:
        done = measure.measure(chosen, variants, rounds, warmup=warmup, on_step=on_step)
    record = ledger.from_measurement(done, "replay", warmup=warmup, start=start)
    base = baseline or ("hakmem" if "hakmem" in record.variants else None)

    def report(kept: str | None) -> Report:
        return comparison.suite_report(record, "replay", baseline=base, figures=replays.FIGURES, kept=kept)

    output.finish(record, report, **files)  # type: ignore[arg-type]
    return 130 if done.interrupted else 1 if done.failures else 0
