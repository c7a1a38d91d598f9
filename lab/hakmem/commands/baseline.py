"""hakmem baseline: where hakmem stands beside the C library, for later measurements to be held against."""

from __future__ import annotations

from dataclasses import replace

import click

from hakmem import output
from hakmem.finite import WholeRange
from hakmem.ledger import Record
from hakmem.report.model import Report

FEWEST_ROUNDS = 3


@click.command()
@click.option("-n", "--rounds", type=WholeRange(min=FEWEST_ROUNDS), default=FEWEST_ROUNDS, show_default=True,
              help="runs of each benchmark under each allocator")  # fmt: skip
@click.option("--sanity", is_flag=True, help="short benchmarks: they prove that they run, nothing else")
@output.options
def command(rounds: int, sanity: bool, **files: str | None) -> int:
    """The benchmarks of the suite on hakmem and on the C library's malloc, run in turns, with the machine's facts.

    `hakmem ready` compares with the last one that was kept. Six rounds or more give ratios with intervals.

    Exit status: 0 when every benchmark ran under both, 1 when one failed, 130 when interrupted.
    """
    from hakmem import allocators, ledger, machine, measure, progress, suite

    start = machine.facts()
    cases = suite.resolve(size="sanity" if sanity else "full")
    variants = measure.variants([allocators.hakmem(), allocators.glibc()])
    with progress.shown() as on_step:
        done = measure.measure(cases, variants, rounds, on_step=on_step)
    record = ledger.from_measurement(done, "baseline", start=start)
    output.finish(record, lambda kept: _report(record, kept), **files)  # type: ignore[arg-type]
    return 130 if done.interrupted else 1 if done.failures else 0


def _report(record: Record, kept: str | None) -> Report:
    """The suite's, with what the machine tells of its speed, or that it doesn't."""
    from hakmem import comparison

    report = comparison.suite_report(record, "baseline", baseline="glibc", kept=kept)
    facts = record.machine
    governor = f"governor {facts.governor or 'not told'}"
    frequency = f"frequency {f'{facts.cpu_mhz:.0f} MHz' if facts.cpu_mhz else 'not told'}"
    return replace(report, machine={**report.machine, "governor": governor, "frequency": frequency})
