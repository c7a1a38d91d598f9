"""What the commands that compare allocators on many cases have in common: their options, and the way to the report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from hakmem import arguments, output, places
from hakmem.finite import WholeRange

if TYPE_CHECKING:
    from hakmem.measure import Case, Variant


def options(of_sanity: str, of_list: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds -n, --warmup, --with, --baseline, --on, --sanity, --list and those of output.options, as arguments rounds,
    warmup, names, baseline, on, sanity, only_list and files. `of_sanity` and `of_list`: what --help says of these."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        command = output.options(command)
        for option in (
            click.option("--list", "only_list", is_flag=True, help=of_list),
            click.option("--sanity", is_flag=True, help=of_sanity),
            places.option,
            click.option("--baseline", metavar="NAME", help="what ratios are to  [default: glibc where it takes part]"),
            arguments.allocators_option(
                "only these allocators; `all`: every one that is installed  [default: hakmem,glibc]"
            ),
            click.option(
                "--warmup", type=WholeRange(min=0), default=0, show_default=True, help="runs of each before them"
            ),
            click.option(
                "-n", "--rounds", type=WholeRange(min=1), default=6, show_default=True, help="counted runs of each"
            ),
        ):
            command = option(command)
        return command

    return add


def compare(
    title: str,
    cases: Sequence[Case],
    variants: Sequence[Variant],
    figures: Iterable[str],
    *,
    rounds: int,
    warmup: int,
    baseline: str | None,
    on: str | None,
    files: dict[str, Any],
    notes: Iterable[str] = (),
) -> int:
    """Measures, keeps and shows; `title` is the record's kind, too. Returns the exit status."""
    from hakmem import comparison, ledger, machine, measure, progress

    measure.expect_baseline(baseline, variants)
    start = machine.facts()
    with places.opened(on) as place, progress.shown() as on_step:
        done = measure.measure(cases, variants, rounds, warmup=warmup, on_step=on_step, place=place)
    done.notes += notes
    record = ledger.from_measurement(done, title, warmup=warmup, start=start)
    output.finish(
        record,
        lambda kept: comparison.suite_report(record, title, baseline=baseline, figures=figures, kept=kept),
        **files,
    )
    return 130 if done.interrupted else 1 if done.failures else 0
