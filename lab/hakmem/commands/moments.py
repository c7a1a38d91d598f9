"""hakmem moments: how much of real programs' memory stays unexplained."""

from __future__ import annotations

import click

from hakmem import output
from hakmem.finite import WholeRange
from hakmem.ledger import Record
from hakmem.report.model import Report


@click.command()
@click.option("-n", "--rounds", type=WholeRange(min=1), default=3, show_default=True, help="runs of each program")
@output.options
def command(rounds: int, **files: str | None) -> int:
    """Explains real programs at five moments of each run, as they are and with the heap profile on, and says how much
    of their resident memory has no cause then, at worst.

    Exit status: 0 when all of it was within what `hakmem explain` promises, 1 when not, 130 when interrupted.
    """
    from hakmem import ledger, machine, measure, moments, progress
    from hakmem.explain import MOST_UNKNOWN

    start = machine.facts()
    with progress.shown() as on_step:
        done = measure.measure(moments.cases(), moments.variants(), rounds, warmup=0, on_step=on_step)
    record = ledger.from_measurement(done, "moments", warmup=0, start=start)
    output.finish(record, lambda kept: _report(record, kept), **files)  # type: ignore[arg-type]
    worst = max(max(one.values) for one in record.series if one.metric == moments.UNKNOWN)
    return 130 if done.interrupted else 1 if done.failures or worst > MOST_UNKNOWN * 100 else 0


def _report(record: Record, kept: str | None) -> Report:
    from dataclasses import replace

    from hakmem import comparison, moments
    from hakmem.report.model import Table

    rows = tuple(
        (case, variant, *(f"{value:.3f} %" for value in record.values(case, variant, moments.UNKNOWN)))
        for case in record.cases
        for variant in record.variants
        if record.values(case, variant, moments.UNKNOWN)
    )
    columns = ("", "", *(f"run {number + 1}" for number in range(record.rounds)))
    note = f"At worst of {moments.MOMENTS} moments of each run."
    base = comparison.report(record, "what stays unknown of resident memory", primary="resident_bytes", kept=kept)
    return replace(base, sections=(Table("unknown", columns, rows, (note,)),), summary=())
