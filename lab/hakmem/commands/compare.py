"""hakmem compare: a command of the user's under several allocators."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from hakmem import arguments, files, output, places
from hakmem.errors import LabError
from hakmem.finite import FiniteRange, WholeRange

ROUNDS = 10
OF_A_DOSSIER = ("also", "outputs", "client", "idle_s", "gain", "loss")  # parameters that mean nothing without one


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "-n",
    "--rounds",
    type=WholeRange(min=1),
    help="counted runs of each  [default: 10; in a dossier more, if it takes more]",
)
@click.option("--warmup", type=WholeRange(min=0), default=1, show_default=True, help="runs of each before them")
@arguments.allocators_option(arguments.NAMES)
@click.option("--baseline", metavar="NAME", help="what ratios are to  [default: glibc where it takes part]")
@click.option(
    "--by",
    "primary",
    metavar="METRIC",
    help="what the verdict is on; in a dossier, the time  [default: wall_s; of a service in a dossier: p99_s]",
)
@click.option("--timeout", type=FiniteRange(min=0, min_open=True), metavar="SECONDS", help="for one run")
@click.option("--dossier", **files.FOLDER, help="what to know before a switch, with a rule fixed before; a new folder")
@click.option("--also", multiple=True, metavar="COMMAND", help="in a dossier: another size of the work, as one word")
@click.option(
    "--output",
    "outputs",
    multiple=True,
    metavar="FILE",
    help="in a dossier: what each run writes; compared like standard output",
)
@click.option("--client", metavar="COMMAND", help="in a dossier: loads COMMAND, a service, and ends; as one word")
@click.option(
    "--idle",
    "idle_s",
    type=FiniteRange(min=0),
    metavar="SECONDS",
    default=300,
    show_default=True,
    help="in a dossier: how long a service idles, each time, until its memory is looked at",
)
@click.option(
    "--gain",
    type=FiniteRange(min=0, max=100, min_open=True),
    metavar="PERCENT",
    default=5,
    show_default=True,
    help="in a dossier: from which on it is worth a switch",
)
@click.option(
    "--loss",
    type=FiniteRange(min=0, max=100),
    metavar="PERCENT",
    default=2,
    show_default=True,
    help="in a dossier: above which a loss forbids it",
)
@places.option
@output.options
@click.argument("words", nargs=-1, type=arguments.WORDS, metavar="-- COMMAND [ARGUMENT]...")
def command(
    rounds: int | None,
    warmup: int,
    names: tuple[str, ...],
    baseline: str | None,
    primary: str | None,
    timeout: float | None,
    dossier: Path | None,
    also: tuple[str, ...],
    outputs: tuple[str, ...],
    client: str | None,
    idle_s: float,
    gain: float,
    loss: float,
    on: str | None,
    words: tuple[str, ...],
    **results: str | None,
) -> int:
    """Runs COMMAND under several allocators, interleaved, and says which is better, and how sure that is.

    Without --with: hakmem and glibc. --with hakmem,glibc,packaged fetches jemalloc, mimalloc and tcmalloc as the
    distribution has built them, in seconds; `hakmem peers install` builds more.

    Every run has empty standard input, and proves whose malloc it ran on. Compared are wall time, CPU time, peak memory
    and page faults; the verdict rests on --by alone (wall_s, cpu_s, peak_rss_bytes, minor_faults). "No difference": the
    95 % interval of the ratio holds 1, and nothing that is 1 % from it. "Don't know": it holds 1 and more, so that it
    takes more rounds to tell. Needs six rounds for a verdict. Ctrl-C keeps whole rounds.

    --dossier DIR runs each command three times a round, also cold and under strace, and has all installed allocators
    take part. Its answer is "switch", "don't switch" or "don't know".

    Exit status: 0 when all was compared, 1 when the command failed under some allocators only, 130 when interrupted.
    """
    import shutil

    from hakmem import allocators, comparison, ledger, machine, measure, peers, process, progress

    if not words:
        raise LabError("no command: expected `hakmem compare [OPTIONS] -- COMMAND [ARGUMENT]...`")
    if dossier is not None:
        if on is not None:
            raise LabError("--dossier is made on this machine: expected it without --on")
        from hakmem.dossier import making

        times = making.TIMES_OF_A_SERVICE if client is not None else making.TIMES_OF_A_COMMAND
        _expect_one(primary, times)
        plan = making.Plan(
            folder=dossier,
            commands=(words, *(making.words_of(text, "--also") for text in also)),
            outputs=tuple(map(Path, outputs)),
            client=making.words_of(client, "--client") if client is not None else (),
            idle_s=idle_s,
            rounds=rounds,
            warmup=warmup,
            timeout_s=timeout,
            time=primary or times[0],
            gain=gain / 100,
            loss=loss / 100,
        )
        return making.run(plan, names, baseline, results)  # type: ignore[arg-type]
    _expect_none_of_a_dossier(click.get_current_context())
    _expect_one(primary, comparison.COMPARED)
    primary, rounds = primary or "wall_s", rounds or ROUNDS
    variants = measure.variants(allocators.resolve(names or ("hakmem,glibc",)))
    measure.expect_baseline(baseline, variants)
    if on is None:
        process.expect_command(words)
    start = machine.facts()
    case = measure.CommandCase(tuple(words), timeout)
    with places.opened(on) as place, progress.shown() as on_step:
        done = measure.measure([case], variants, rounds, warmup=warmup, on_step=on_step, place=place)
    record = ledger.from_measurement(done, "compare", warmup=warmup, start=start)
    output.finish(
        record,
        lambda kept: comparison.report(record, case.name, baseline=baseline, primary=primary, kept=kept),
        **results,  # type: ignore[arg-type]
    )
    if not names and not peers.installed() and shutil.which("apt-get"):
        click.echo(
            "hakmem: --with hakmem,glibc,packaged takes in the distribution's jemalloc, mimalloc, tcmalloc", err=True
        )
    return 130 if done.interrupted else 1 if done.failures else 0


def _expect_one(metric: str | None, known: Sequence[str]) -> None:
    """Before anything is run: what no run has is no verdict."""
    if metric is not None and metric not in known:
        raise LabError(f"--by {metric}: expected one of {', '.join(known)}")


def _expect_none_of_a_dossier(context: click.Context) -> None:
    for option in context.command.params:
        is_given = context.get_parameter_source(option.name or "") is not click.core.ParameterSource.DEFAULT
        if option.name in OF_A_DOSSIER and is_given:
            raise LabError(f"{option.opts[0]} is for a dossier: expected --dossier DIR too")
