"""hakmem ab: two settings or two builds, one decision."""

from __future__ import annotations

import re

import click

from hakmem import arguments, output
from hakmem.errors import LabError
from hakmem.finite import FiniteRange, WholeRange


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--a", "a", metavar="SIDE", help="what to compare with: -, or NAME=VALUE,...,library=PATH")
@click.option("--b", "b", metavar="SIDE", help="the other side")
@click.option("--matrix", multiple=True, metavar="NAME=V,V...", help="instead: every combination of several switches")
@click.option("-n", "--rounds", type=WholeRange(min=1), default=10, show_default=True, help="runs of each side")
@click.option("--threshold", default=1.0, show_default=True, metavar="PERCENT", type=FiniteRange(0, 100))
@click.option("--instructions", is_flag=True, help="count instructions (by callgrind) in place of time and memory")
@click.option("--sanity", is_flag=True, help="short benchmarks: they prove that they run, nothing else")
@output.options
@click.argument("what", nargs=-1, required=True, metavar="-- COMMAND... | bench NAME,...", type=arguments.WORDS)
def command(
    a: str | None,
    b: str | None,
    matrix: tuple[str, ...],
    rounds: int,
    threshold: float,
    instructions: bool,
    sanity: bool,
    what: tuple[str, ...],
    **files: str | None,
) -> int:
    """Decides between A and B: the same work under two settings (--a - --b PREFAULT=1) or under two builds (--b
    library=PATH), run in turns.

    GO: B is shown to be better, by the threshold or more. NO-GO: worse. NEUTRAL: neither by more than that. DON'T KNOW:
    it takes more rounds to tell. Time and peak memory are decided apart. With --instructions, COMMAND must do the same
    work in each run.

    --matrix PREFAULT=0,1 OTHER=0,1 tells what each switch does, and what they do together.

    Exit status: 0 when all was compared, 1 when a side failed, 130 when interrupted.
    """
    from hakmem import ab, counted, ledger, machine, measure, process, progress

    while matrix and what and re.match(r"\w+=", what[0]):  # --matrix A=0,1 B=0,1
        matrix, what = (*matrix, what[0]), what[1:]
    what = what[1:] if what[:1] == ("--",) else what
    if bool(matrix) == bool(a or b):
        raise LabError("expected --a SIDE and --b SIDE, or --matrix; `-` is a side with nothing set")
    switches: list[str] = []
    if matrix:
        variants, switches = ab.matrix(matrix)
    else:
        variants = [ab.side("a", a or "-"), ab.side("b", b or "-")]
        one, other = ((side.allocator, {**process.caller_settings(), **side.settings}) for side in variants)
        if one == other:
            raise LabError("A and B are the same: nothing to decide")
    cases = ab.cases(what, sanity=sanity)
    cases = counted.counted(cases) if instructions else cases
    start = machine.facts()
    with progress.shown() as on_step:
        done = measure.measure(cases, variants, rounds, on_step=on_step)
    record = ledger.from_measurement(done, "ab", start=start)
    output.finish(record, lambda kept: ab.report(record, threshold / 100, switches, kept), **files)  # type: ignore[arg-type]
    return 130 if done.interrupted else 1 if done.failures else 0
