"""hakmem compare: a command of the user's under several allocators."""

from __future__ import annotations

import click

from hakmem import output
from hakmem.errors import LabError
from hakmem.finite import FiniteRange


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-n", "--rounds", type=click.IntRange(min=1), default=10, show_default=True, help="counted runs of each")
@click.option("--warmup", type=click.IntRange(min=0), default=1, show_default=True, help="runs of each before them")
@click.option(
    "--with",
    "names",
    multiple=True,
    metavar="NAMES",
    help="allocators with commas between, NAME=PATH, all, packaged",
)
@click.option("--baseline", metavar="NAME", help="what ratios are to  [default: glibc where it takes part]")
@click.option("--by", "primary", default="wall_s", show_default=True, metavar="METRIC", help="what the verdict is on")
@click.option("--timeout", type=FiniteRange(min=0, min_open=True), metavar="SECONDS", help="for one run")
@output.options
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND [ARGUMENT]...")
def command(
    rounds: int,
    warmup: int,
    names: tuple[str, ...],
    baseline: str | None,
    primary: str,
    timeout: float | None,
    words: tuple[str, ...],
    **files: str | None,
) -> int:
    """Runs COMMAND under several allocators, interleaved, and says which is better, and how sure that is.

    Without --with: hakmem and glibc. --with hakmem,glibc,packaged fetches jemalloc, mimalloc and tcmalloc as the
    distribution has built them, in seconds; `hakmem peers install` builds more.

    Every run proves whose malloc it ran on. Compared are wall time, CPU time, peak memory and page faults; the verdict
    rests on --by alone (wall_s, cpu_s, peak_rss_bytes, minor_faults). "No difference": the 95 % interval of the ratio
    holds 1, and nothing that is 1 % from it. "Don't know": it holds 1 and more, so that it takes more rounds to tell.
    Needs six rounds for a verdict. Ctrl-C keeps whole rounds.

    Exit status: 0 when all was compared, 1 when the command failed under some allocators only, 130 when interrupted.
    """
    import shutil

    from hakmem import allocators, comparison, ledger, machine, measure, peers, process, progress

    if not words:
        raise LabError("no command: expected `hakmem compare [OPTIONS] -- COMMAND [ARGUMENT]...`")
    if primary not in measure.METRICS:
        raise LabError(f"--by {primary}: expected one of {', '.join(comparison.COMPARED)}")
    variants = measure.variants(allocators.resolve(names or ("hakmem,glibc",)))
    if baseline is not None and baseline not in {variant.name for variant in variants}:
        raise LabError(f"--baseline {baseline}: not among {', '.join(variant.name for variant in variants)}")
    process.expect_program(words)
    start = machine.facts()
    case = measure.CommandCase(tuple(words), timeout)
    with progress.shown() as on_step:
        done = measure.measure([case], variants, rounds, warmup=warmup, on_step=on_step)
    record = ledger.from_measurement(done, "compare", warmup=warmup, start=start)
    output.finish(
        record,
        lambda kept: comparison.report(record, case.name, baseline=baseline, primary=primary, kept=kept),
        **files,  # type: ignore[arg-type]
    )
    if not names and not peers.installed() and shutil.which("apt-get"):
        click.echo(
            "hakmem: --with hakmem,glibc,packaged takes in the distribution's jemalloc, mimalloc, tcmalloc", err=True
        )
    return 130 if done.interrupted else 1 if done.failures else 0
