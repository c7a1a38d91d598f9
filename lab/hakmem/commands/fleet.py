"""hakmem fleet: an experiment on part of many hosts."""

from __future__ import annotations

from pathlib import Path

import click

from hakmem import files
from hakmem.finite import FiniteRange


@click.group()
def command() -> None:
    """What a setting does on part of a fleet (HAKMEM_EXPERIMENT)."""


@command.command("analyse")
@click.option("--prometheus", "url", required=True, metavar="URL", help="the server that has the hosts' metrics")
@click.option(
    "--by", "expression", metavar="EXPRESSION", help="what is compared, in PromQL  [default: resident memory]"
)
@click.option("--host", "label", default="instance", show_default=True, metavar="LABEL", help="that tells hosts apart")
@click.option(
    "--since",
    metavar="TIME",
    help="from when on it counts: 2026-11-26T08:00 (UTC), or 3d ago as 3d  [default: since a host said so]",
)
@click.option(
    "--before", default="7d", show_default=True, metavar="DURATION", help="how long before it began is looked at"
)
@click.option("--threshold", default=0.2, show_default=True, metavar="PERCENT", type=FiniteRange(0, 100))
@click.option("--more-is-better", is_flag=True, help="of a throughput, say")
@files.json_option("What was found")
@click.argument("name")
def analyse(
    url: str,
    expression: str | None,
    label: str,
    since: str | None,
    before: str,
    threshold: float,
    more_is_better: bool,
    json_file: Path | None,
    name: str,
) -> None:
    """Compares the hosts of both arms of the experiment NAME, each adjusted by its own figure from before.

    GO: the treatment is shown to be better, by the threshold or more. NO-GO: worse. NEUTRAL: neither by more than
    that. DON'T KNOW: it takes more hosts or more time to tell; the last lines say how small an effect would have been
    seen.

    --by 'rate(process_cpu_seconds_total[5m])' compares another figure. It may have several series of a host: the mean
    over time of their mean counts.

    Exit status: 0 for any answer, 2 where there is none.
    """
    import re
    import time
    from dataclasses import asdict

    from hakmem import fleet
    from hakmem.errors import LabError

    if not re.fullmatch(r"[a-zA-Z_]\w*", label, re.ASCII):
        raise LabError(f"--host {label}: expected the name of a label")
    if expression and re.fullmatch(r"[\w:]+_total(\{[^{}]*\})?", expression.strip()):
        raise LabError(f"--by {expression}: it counts since each process began; expected rate({expression}[5m])")
    ask, end, before_s = fleet.prometheus(url), time.time(), fleet.duration(before)
    wanted = fleet.moment(since) if since else None
    begun = fleet.begun(ask, name, end)
    start = begun if wanted is None else wanted
    if start >= end - 1:
        raise LabError("the experiment has not begun yet")
    windows = fleet.Windows(start, end, min(begun, start), before_s)
    compared = expression or fleet.RESIDENT
    hosts, silent = fleet.hosts(ask, name, compared, label, windows)
    if silent:
        click.echo(
            f"hakmem: left out: {silent} hosts of the experiment, of which --by gives no figure since then", err=True
        )
    found = fleet.analyse(hosts, threshold / 100, not more_is_better)
    plain = {**asdict(found), "decision": found.decision.value, "name": name, "by": compared, **asdict(windows)}
    files.write_json(json_file, plain)
    if not files.takes_output(json_file):
        print("\n".join(fleet.lines(found, compared, not more_is_better, windows)))
