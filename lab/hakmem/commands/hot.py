"""hakmem hot: where a command's time goes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hakmem import arguments, files
from hakmem.finite import WholeRange

if TYPE_CHECKING:
    from hakmem.hot import Profile
    from hakmem.measure import Measurement
    from hakmem.pages import Matrix


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--allocator", "name", default="hakmem", show_default=True, help="Runs the command on this one.")
@click.option(
    "--tool", type=click.Choice(["perf", "callgrind"]), help="Instead of perf where it works, else callgrind."
)
@click.option("--pages", "show_pages", is_flag=True, help="Compare with and without huge pages and prefault instead.")
@click.option("--rounds", type=WholeRange(min=1), default=3, show_default=True, help="Rounds of --pages.")
@files.json_option("The report")
@click.argument("words", nargs=-1, required=True, metavar="-- COMMAND...", type=arguments.WORDS)
def command(
    name: str, tool: str | None, show_pages: bool, rounds: int, json_file: Path | None, words: tuple[str, ...]
) -> None:
    """Shows where a command's time goes: hot functions by layer, kernel and user mode, page faults, cache misses.

    Runs the command twice, with empty standard input; with --pages once per row and round, and once to warm up.
    """
    import dataclasses

    from hakmem import allocators, hot, pages, progress
    from hakmem.errors import LabError

    found = allocators.resolve([name])
    if len(found) != 1:
        raise LabError(f"--allocator {name}: expected one allocator")
    if not show_pages:
        profile = hot.profile(words, found[0], tool)
        files.write_json(json_file, dataclasses.asdict(profile))
        if not files.takes_output(json_file):
            print(text(profile))
        return
    matrix = pages.matrix(found[0])
    with progress.shown() as on_step:
        measurement = pages.run(words, matrix, rounds, on_step)
    files.write_json(json_file, _pages_plain(measurement, matrix))
    if not files.takes_output(json_file):
        print(_pages_text(measurement, matrix))


def text(profile: Profile) -> str:
    from hakmem.profilers import EVENTS
    from hakmem.words import amount, table

    in_kernel = profile.kernel_share
    split = "too little to tell user mode from the kernel"
    if in_kernel is not None:
        split = f"{1 - in_kernel:.0%} in user mode, {in_kernel:.0%} in the kernel"
    lines = [
        f"{' '.join(profile.command)} on {profile.allocator}, by {profile.tool}: {profile.why}",
        "",
        f"wall time    {amount(profile.wall_s, 's')}",
        f"CPU time     {amount(profile.cpu_s, 's')}, {split}",
        f"page faults  {profile.minor_faults:,} minor, {profile.major_faults:,} major",
        f"peak RSS     {amount(profile.peak_rss_bytes, 'B')}",
        *(f"{EVENTS[event]}  {amount(count, '')}" for event, count in profile.events.items()),
    ]
    if profile.cannot_count:
        lines.append(f"not counted  {', '.join(profile.cannot_count)}: {profile.cannot_count_why}")
    unit = profile.unit.removesuffix("s") if profile.total == 1 else profile.unit
    lines += ["", f"Shares of {profile.total:,} {unit}, in functions themselves", ""]
    lines.append(table(["layer", "self"], [[layer, f"{share:.1%}"] for layer, share in profile.layers.items()]))
    lines.append("")
    rows = [[f.name[:60], f"{f.share:.1%}", f.layer, f.module] for f in profile.functions]
    lines.append(table(["function (>= 2 %)", "self", "layer", "file"], rows))
    lines += [f"Note: {note}." for note in profile.notes]
    return "\n".join(lines)


COLUMNS = {"wall": "wall_s", "CPU in kernel": "system_s", "page faults": "minor_faults", "peak RSS": "peak_rss_bytes"}


def _pages_text(measurement: Measurement, matrix: Matrix) -> str:
    from statistics import median

    from hakmem.measure import METRICS
    from hakmem.words import amount, interleaved, table

    case = measurement.cases[0].name
    rows = []
    for variant in measurement.variants:
        values = [measurement.values(case, variant.name, metric) for metric in COLUMNS.values()]
        cells = [
            amount(median(some), METRICS[metric].unit.replace("faults", "")) if some else "failed"
            for some, metric in zip(values, COLUMNS.values(), strict=True)
        ]
        rows.append([variant.name, *cells])
    lines = [
        f"{case} on {measurement.variants[0].allocator.name}: medians of {interleaved(measurement.rounds)}",
        "",
    ]
    lines.append(table(["", *COLUMNS], rows))
    notes = [*matrix.notes, *(f"{failure.variant}: {failure.reason}" for failure in measurement.failures)]
    return "\n".join([*lines, *(f"Note: {note}." for note in notes)])


def _pages_plain(measurement: Measurement, matrix: Matrix) -> dict[str, object]:
    case = measurement.cases[0].name
    rows = [
        {
            "variant": variant.name,
            "huge_pages_denied": variant.name in matrix.denied,
            "settings": dict(variant.settings),
            **{metric: measurement.values(case, variant.name, metric) for metric in COLUMNS.values()},
        }
        for variant in measurement.variants
    ]
    failures = [{"variant": failure.variant, "reason": failure.reason} for failure in measurement.failures]
    return {"command": case, "rounds": measurement.rounds, "rows": rows, "failures": failures, "notes": matrix.notes}
