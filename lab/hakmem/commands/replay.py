"""hakmem replay: traces of real programs under several allocators."""

from __future__ import annotations

import click

from hakmem import arguments
from hakmem.commands import suites


@click.command()
@suites.options(
    "short runs: they prove that traces can be replayed, nothing else", "print the traces that come with hakmem"
)
@click.option(
    "--lifetimes", is_flag=True, help="in place of the recorded calls, a long run of blocks that live as the trace's do"
)
@click.argument("traces", nargs=-1, metavar="TRACE...", type=arguments.TRACES)
def command(
    rounds: int,
    warmup: int,
    names: tuple[str, ...],
    baseline: str | None,
    on: str | None,
    sanity: bool,
    only_list: bool,
    lifetimes: bool,
    traces: tuple[str, ...],
    **files: str | None,
) -> int:
    """Replays what programs asked of their allocators, under hakmem and glibc, or under the allocators of --with.

    TRACE is the name of one that comes with hakmem, or a file that `hakmem record` wrote. It is gone through as often
    as it takes for 10 million calls, in the recorded threads and the recorded order. heap_per_live is the ratio of the
    memory that the blocks took to the bytes that were asked for.

    With --lifetimes, a program in one thread allocates blocks of the trace's sizes and frees them when they are as old
    as those became, some much later, as a program does that runs for a day: 100 million calls. over_packed is the
    ratio of the memory to the pages that the bytes alive need at least; early and late are the sixth hour and the last.

    Exit status: 0 when every trace was replayed under every allocator, 1 when one failed, 130 when interrupted.
    """
    from hakmem import allocators, measure, native, replays, words

    if only_list:
        print(
            words.table(["trace", "calls", "threads", "alive at the most", "package", "what it did"], replays.listing())
        )
        return 0
    if not traces:
        raise click.UsageError("no trace: expected a file, or a name that `hakmem replay --list` prints")
    native.expect_programs()
    return suites.compare(
        "replay",
        replays.cases(traces, size="sanity" if sanity else "full", lifetimes=lifetimes),
        measure.variants(allocators.resolve(names or ("hakmem,glibc",))),
        replays.LIFETIMES_FIGURES if lifetimes else replays.FIGURES,
        rounds=rounds,
        warmup=warmup,
        baseline=baseline,
        on=on,
        files=files,
    )
